"""What fills the tables that a question reads: said where an answer has no rows."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from contextlib import suppress

from duckdb import DuckDBPyConnection

import sql
from flows.config import RunSettings
from storage.errors import TheodoliteError
from storage.queries import fetch
from tasks.stages.registry import stages, tables

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


def no_rows_lines(connection: DuckDBPyConnection, text: str, runs: str, capture: str | None) -> list[str]:
    """Why a statement has no rows, as far as the tables that it reads tell, and the commands that would fill them."""
    if _is_empty(connection, "captures", None):
        return [f"No rows: nothing is captured yet. `theodolite run{place(runs)}` captures and measures."]
    empty: dict[str, list[str]] = {}
    for table in tables_read(text):
        stage = stage_of(table)
        if stage is not None and _is_empty(connection, table, capture):
            empty.setdefault(stage, []).append(table)
    if not empty:
        return ["No rows: the tables are filled, but nothing in them fits what was asked."]
    of = "" if capture is None else f" --capture {capture}"
    return [_told(stage, names, f"theodolite stage {stage}{of}{place(runs)}") for stage, names in empty.items()]


def _told(stage: str, names: Sequence[str], command: str) -> str:
    are = "is empty" if len(names) == 1 else "are empty"
    return f"No rows: {', '.join(names)} {are}, filled by the stage {stage}: {command}"


def _is_empty(connection: DuckDBPyConnection, table: str, capture: str | None) -> bool:
    text = f"select 1 from {table} where $capture::varchar is null or capture = $capture limit 1"
    with suppress(TheodoliteError):  # a lost part is told where it is asked for; the table is not empty
        return not fetch(connection, text, {"capture": capture}).num_rows
    return False
