"""What fills the tables that a question reads: said where an answer has no rows."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from duckdb import DuckDBPyConnection

import sql
from flows.config import RunSettings
from storage.errors import TheodoliteError
from storage.queries import fetch
from tasks.stages.registry import stages, tables

_SHOWN = 40
_READ = re.compile(r"\b(?:from|join)\s+\"?(\w+)", re.IGNORECASE)


def tables_read(text: str) -> list[str]:
    """The tables of the warehouse that a statement reads, in its order; `<table>_history` is its table."""
    known = tables()
    named = (name.lower().removesuffix("_history") for name in _READ.findall(text))
    return list(dict.fromkeys(name for name in named if name in known))


def stage_of(table: str) -> str | None:
    """The stage that fills a table; None of those that the capture itself fills."""
    return next((s.name for s in stages().values() if table in {spec.name for spec in s.tables}), None)


def stages_asked(query: str) -> set[str]:
    """The stages that fill what a named query reads."""
    found = map(stage_of, tables_read(sql.read("queries", query).text))
    return {stage for stage in found if stage is not None}


def place(runs: str) -> str:
    """The option that names the folder of runs, where it has to be given."""
    return "" if runs == RunSettings().runs else f" --runs {shlex.quote(runs)}"


def no_rows_lines(connection: DuckDBPyConnection, text: str, runs: str, values: Mapping[str, Any]) -> list[str]:
    """Why a statement has no rows, as far as the tables that it reads say, and the commands that would fill them.

    values: the parameters of a named query that are not its defaults. Of a folder without captures nothing is said
    here: the command says so of every statement.
    """
    capture = values.get("capture")
    if _is_empty(connection, "captures", None):
        return []
    empty: dict[str, list[str]] = {}
    for table in tables_read(text):
        stage = stage_of(table)
        if stage is not None and _is_empty(connection, table, capture):
            empty.setdefault(stage, []).append(table)
    if not empty:
        absent = [line for name in values for line in _absent_value(connection, text, name, values)]
        return absent or ["No rows: the tables are filled, but no row meets the conditions."]
    of = "" if capture is None else f" --capture {capture}"
    return [_told(stage, names, f"theodolite stage {stage}{of}{place(runs)}") for stage, names in empty.items()]


def _told(stage: str, names: Sequence[str], command: str) -> str:
    are = "is empty" if len(names) == 1 else "are empty"
    return f"No rows: {', '.join(names)} {are}, filled by the stage {stage}: {command}"


def _absent_value(connection: DuckDBPyConnection, text: str, name: str, values: Mapping[str, Any]) -> Iterator[str]:
    """One line where a parameter names a value of a column that the table does not have: which values it has."""
    having = [table for table in tables_read(text) if name in tables()[table].schema.names and name != "capture"]
    for table in having[:1]:
        asked = f"select distinct {name} as value from {table} where $capture::varchar is null or capture = $capture"
        found = fetch(connection, f"{asked} order by value", {"capture": values.get("capture")})["value"].to_pylist()
        known = [str(value) for value in found if value is not None]
        if str(values[name]) not in known:
            shown = ", ".join(known[:_SHOWN]) + (" …" if len(known) > _SHOWN else "")
            yield f"No rows: {table} has no {name} {values[name]}; it has {shown or 'none'}."


def _is_empty(connection: DuckDBPyConnection, table: str, capture: str | None) -> bool:
    text = f"select 1 from {table} where $capture::varchar is null or capture = $capture limit 1"
    with suppress(TheodoliteError):  # a lost part is reported where it is read; the table is not empty
        return not fetch(connection, text, {"capture": capture}).num_rows
    return False
