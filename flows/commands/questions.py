"""The commands that ask the warehouse: sql and query."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from flows import options as o
from flows.answers import tell_answer
from flows.captures import pick_capture
from flows.console import answering, output, plain
from flows.session import add_place, runs_folder
from storage.errors import UsageError
from storage.filesystem import open_runs
from storage.manifest import list_captures
from storage.warehouse import connect, list_queries, query, run_sql
from tasks.registry import tables

_SHOWN_ROWS = 100


@answering
def sql(
    statement: Annotated[str, typer.Argument(metavar="SQL", help="One statement that reads.")],
    runs: o.Runs = None,
    as_json: o.Json = False,
    verbose: o.Verbose = False,
) -> None:
    """Ask the warehouse in SQL: every table is a view of its name."""
    _answer(runs_folder(runs), lambda connection: run_sql(connection, statement))


@answering
def query_(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="The query; without one, all are listed.")
    ] = None,
    parameters: Annotated[list[str] | None, typer.Argument(metavar="[PARAMETER=VALUE]...")] = None,
    runs: o.Runs = None,
    as_json: o.Json = False,
    verbose: o.Verbose = False,
) -> None:
    """Ask a named query, such as `theodolite query convexity layer=2`."""
    if name is None:
        _list_queries()
        return
    values = dict(_parameter(text) for text in parameters or ())
    named = values.get("capture", "null")
    capture = None if named.lower() == "null" else named
    _answer(runs_folder(runs), lambda connection: query(connection, name, values), capture)


def _parameter(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError("parameter=value", got=f"'{text}'", where="theodolite query")
    return name, value


def _list_queries() -> None:
    out, known = output(), list_queries()
    out.table(
        ["query", "answers", "parameters"], [[q.name, q.summary, " ".join(p.name for p in q.parameters)] for q in known]
    )
    out.add(queries=[{"name": q.name, "grain": q.grain, "summary": q.summary} for q in known])


def _answer(where: str, ask: Any, capture: str | None = None) -> None:
    fs, out = open_runs(where), output()
    connection = connect(fs, tables())
    try:
        answer = ask(connection)
    finally:
        connection.close()
    rows = [list(row.values()) for row in answer.slice(0, _SHOWN_ROWS).to_pylist()]
    if rows:
        tell_answer(out, answer.column_names, rows, out.width)
    if answer.num_rows > _SHOWN_ROWS:
        out.say(f"… the first {_SHOWN_ROWS} of {answer.num_rows:,} rows; --json gives all")
    if not answer.num_rows:
        out.say("No rows: nothing of what was asked for is in the warehouse; `theodolite status` tells what is done.")
    if list_captures(fs):
        add_place(where, pick_capture(where, capture))
    out.add(columns=answer.column_names, rows=plain(answer.to_pylist()))
