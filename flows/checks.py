"""The identities that tables must hold, checked in SQL at the end of a run and by `theodolite verify`."""

from __future__ import annotations

from collections.abc import Sequence

from storage.errors import TheodoliteError
from storage.filesystem import open_runs
from storage.numbers import counted
from storage.warehouse import CheckResult, connect, run_checks
from tasks.stages.registry import declared_checks, tables


class ChecksFailed(TheodoliteError, ArithmeticError):
    """Tables break an identity that they must hold."""


def check_tables(runs: str, captures: Sequence[str]) -> list[CheckResult]:
    """Every check over these captures."""
    connection = connect(open_runs(runs), tables())
    try:
        return run_checks(connection, declared_checks(), captures)
    finally:
        connection.close()


def checks_told(results: Sequence[CheckResult]) -> str:
    """How many checks hold, over how many rows, and how many of them had nothing to check: one sentence's words."""
    held = [r for r in results if r.passed and r.rows_checked]
    broken = [r for r in results if not r.passed]
    idle = len(results) - len(held) - len(broken)
    hold = "holds" if len(held) == 1 else "hold"
    told = f"{counted(len(held), 'check')} of {counted(sum(r.rows_checked for r in held), 'row')} {hold}"
    told += f"; {len(broken)} broken" if broken else ""
    return f"{told}; {idle} had nothing to check" if idle else told


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
