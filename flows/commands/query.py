"""The commands that ask the warehouse: sql and query."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import typer

import sql as files
from flows import options as o
from flows.answer_layout import listing, tell_answer
from flows.captures import nothing_captured, pick_capture
from flows.console import answering, output, plain
from flows.empty_answers import no_rows_lines
from flows.export import check_output, write_answer
from flows.session import add_place, runs_folder
from storage.errors import UsageError
from storage.filesystem import open_runs
from storage.manifest import list_captures
from storage.numbers import counted
from storage.warehouse import connect, list_queries, query, query_info, run_sql
from tasks.stages.registry import tables

_SHOWN_ROWS = 100
_HELP = "help"


@answering
def sql(
    statement: Annotated[str, typer.Argument(metavar="SQL", help="One statement that reads.")],
    output_file: o.OutputFile = None,
    runs: o.Runs = None,
    as_json: o.Json = False,
    verbose: o.Verbose = False,
) -> None:
    """Ask the warehouse in SQL: every table is a view of its name."""
    _answer(runs_folder(runs), lambda connection: run_sql(connection, statement), statement, output_file)


@answering
def query_(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="The query; without one, all are listed.")
    ] = None,
    parameters: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PARAMETER=VALUE]...", help="Its parameters; or help, which tells them."),
    ] = None,
    output_file: o.OutputFile = None,
    runs: o.Runs = None,
    as_json: o.Json = False,
    verbose: o.Verbose = False,
) -> None:
    """Ask a named query, such as `theodolite query convexity layer=2`; `query convexity help` tells of it."""
    if name is None:
        _list_queries()
        return
    if parameters == [_HELP]:
        _tell_query(name)
        return
    values: dict[str, Any] = dict(_parameter(text) for text in parameters or ())
    text, where = files.read("queries", query_info(name).name).text, runs_folder(runs)
    capture = values.get("capture", "null")
    if capture.lower() == "null":
        values.pop("capture", None)
    else:
        values["capture"] = pick_capture(where, capture)
    _answer(where, lambda connection: query(connection, name, values), text, output_file, values)


def _parameter(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError("parameter=value", got=f"'{text}'", where="theodolite query")
    return name, value


def _list_queries() -> None:
    out, known = output(), list_queries()
    for line in listing([(q.name, q.question) for q in known], out.width):
        out.say(line)
    out.say()
    out.say(f"A query's parameters, and what a row of it is: theodolite query NAME {_HELP}")
    out.add(queries=[{"name": q.name, "grain": q.grain, "summary": q.summary} for q in known])


def _tell_query(name: str) -> None:
    """All that a query's file says of it."""
    told, out = query_info(name), output()
    for line in listing([("answers", told.summary), ("grain", told.grain)], out.width):
        out.say(line)
    out.say()
    values = [(f"{p.name}={_default(p.default)}", f"{p.type}: {p.meaning}") for p in told.parameters]
    for line in listing(values, out.width):
        out.say(line)
    out.add(query=asdict(told))


def _default(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _answer(where: str, ask: Any, text: str, output_file: str | None, values: Mapping[str, Any] | None = None) -> None:
    """Run a statement, and print or write the answer; `text` is its SQL, and `values` the query's parameters."""
    capture = (values or {}).get("capture")
    if output_file is not None:
        check_output(output_file)
    fs, out = open_runs(where), output()
    connection = connect(fs, tables())
    try:
        answer = ask(connection)
        why_none = [] if answer.num_rows else no_rows_lines(connection, text, where, values or {})
    finally:
        connection.close()
    if output_file is not None:
        write_answer(answer, output_file)
        out.say(f"{counted(answer.num_rows, 'row')} in {output_file}")
        out.add(output=str(Path(output_file).absolute()))
    else:
        _tell_rows(answer)
    for line in why_none:
        out.say(line)
    if list_captures(fs):
        add_place(where, pick_capture(where, capture))
    else:
        out.warn(nothing_captured(where))
    out.add(columns=answer.column_names, rows=plain(answer.to_pylist()))


def _tell_rows(answer: pa.Table) -> None:
    out = output()
    rows = [list(row.values()) for row in answer.slice(0, _SHOWN_ROWS).to_pylist()]
    if rows:
        tell_answer(out, answer.column_names, rows, out.width)
    if answer.num_rows > _SHOWN_ROWS:
        out.say(f"… the first {_SHOWN_ROWS} of {answer.num_rows:,} rows; --output FILE or --json gives all")
