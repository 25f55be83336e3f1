"""The checks of the warehouse: the identities of `sql/checks`, and what follows from the declarations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb

import sql
from storage.errors import UnknownName
from storage.queries import captures as known_captures
from storage.queries import check_capture, fetch
from storage.table_checks import Check

_NOT_A_PLACE = {"capture", "error", "tolerance"}
"""Columns of a check's rows that do not say where in the capture the row is."""


@dataclass(frozen=True)
class CheckResult:
    """One check over one capture. `worst` is the largest error, passed or not; None if nothing was checked."""

    name: str
    capture: str
    passed: bool
    rows_checked: int
    failures: int
    worst: float | None
    message: str


def list_checks(declared: Sequence[Check]) -> list[Check]:
    """Every check: those written as files, then those that follow from the declarations of tables and stages."""
    files = (sql.read("checks", name) for name in sql.names("checks"))
    return [*(Check(f.name, f.summary, f.body) for f in files), *declared]


def run_checks(
    connection: duckdb.DuckDBPyConnection,
    declared: Sequence[Check],
    captures: Sequence[str] | None = None,
    *,
    only: Iterable[str] | None = None,
) -> list[CheckResult]:
    """Every check over every capture (or these), in the order of `list_checks`; `only` names some of the checks.

    Raises UnknownName for a capture or check that is not there, MissingPart or DamagedPart for a file that cannot be
    read.
    """
    for capture in captures or ():
        check_capture(connection, capture)
    chosen = list(captures) if captures is not None else known_captures(connection)
    known = {check.name: check for check in list_checks(declared)}
    checks = list(known.values()) if only is None else [_named(name, known) for name in only]
    return [result for check in checks for result in _run(connection, check, chosen)]


def violations(
    connection: duckdb.DuckDBPyConnection, declared: Sequence[Check], name: str, capture: str, limit: int
) -> list[dict[str, Any]]:
    """The worst rows of the check of that name in one capture, the worst first, each with its error and tolerance.

    Raises UnknownName for a capture or check that is not there.
    """
    check_capture(connection, capture)
    return _violations(connection, _named(name, {check.name: check for check in list_checks(declared)}), capture, limit)


def _violations(connection: duckdb.DuckDBPyConnection, check: Check, capture: str, limit: int) -> list[dict[str, Any]]:
    text = (
        f"select * from (\n{check.body}\n) where capture = $capture "
        "order by coalesce(error, 'infinity'::double) desc limit $limit"
    )
    return fetch(connection, text, {"everything": False, "capture": capture, "limit": limit}).to_pylist()


def _named(name: str, known: Mapping[str, Check]) -> Check:
    if name not in known:
        raise UnknownName.among("check", name, known)
    return known[name]


def _run(connection: duckdb.DuckDBPyConnection, check: Check, captures: Sequence[str]) -> list[CheckResult]:
    text = f"""
        select capture, count(*) as n, max(error)::double as worst, max(tolerance)::double as tolerance,
               count(*) filter (where not coalesce(error <= tolerance, false)) as failures
        from (\n{check.body}\n) where list_contains($captures::varchar[], capture) group by capture"""
    table = fetch(connection, text, {"everything": True, "captures": list(captures)})
    found = {row["capture"]: row for row in table.to_pylist()}
    return [_result(connection, check, capture, found.get(capture)) for capture in captures]


def _result(
    connection: duckdb.DuckDBPyConnection, check: Check, capture: str, row: dict[str, Any] | None
) -> CheckResult:
    if row is None:
        return CheckResult(check.name, capture, True, 0, 0, None, "nothing to check")
    n, failures, worst = row["n"], row["failures"], row["worst"]
    if not failures:
        allowed = f" where {row['tolerance']:.2g} is allowed" if row["tolerance"] else ""
        return CheckResult(check.name, capture, True, n, 0, worst, f"holds: worst error {worst:.2g}{allowed}")
    first = _violations(connection, check, capture, 1)[0]
    where = ", ".join(f"{name} {value}" for name, value in first.items() if name not in _NOT_A_PLACE)
    size = "undefined" if first["error"] is None else f"{first['error']:.3g} where {first['tolerance']:.2g} is allowed"
    message = f"{check.summary} Broken in {failures:,} of {n:,}; worst at {where or 'the capture'}: error {size}."
    return CheckResult(check.name, capture, False, n, failures, worst, message)
