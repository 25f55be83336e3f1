"""The identities that tables must hold, checked in SQL at the end of a run and by `theodolite verify`."""

from __future__ import annotations

from collections.abc import Sequence

from storage.errors import TheodoliteError
from storage.filesystem import open_runs
from storage.warehouse import CheckResult, connect, run_checks
from tasks.registry import tables


class ChecksFailed(TheodoliteError, ArithmeticError):
    """Tables break an identity that they must hold."""


def check_tables(runs: str, captures: Sequence[str]) -> list[CheckResult]:
    """Every check over these captures."""
    connection = connect(open_runs(runs), tables())
    try:
        return run_checks(connection, captures)
    finally:
        connection.close()


def require(results: Sequence[CheckResult], captures: Sequence[str]) -> None:
    """Raise ChecksFailed, with the worst of it, unless all hold."""
    broken = [result for result in results if not result.passed]
    if broken:
        raise ChecksFailed(
            f"all {len(results)} checks to hold",
            got=f"{len(broken)} broken ({', '.join(r.name for r in broken[:4])}): {broken[0].message}",
            where=f"capture {', '.join(captures)}",
            remedy="`theodolite verify` shows each, and whether a file changed since it was written.",
        )
