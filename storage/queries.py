"""Questions to the warehouse: the named queries of `sql/queries`, and any SELECT."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

import duckdb
import pyarrow as pa

import sql
from storage.errors import UnknownName, UsageError
from storage.sql_errors import interruptible, translate_sql_errors


@dataclass(frozen=True)
class QueryInfo:
    """A named query: what one row of its answer is, what it answers, and its parameters with their defaults."""

    name: str
    grain: str
    summary: str
    parameters: tuple[sql.Parameter, ...]

    @property
    def question(self) -> str:
        """The first sentence of the summary."""
        return re.split(r"(?<=[?.]) ", self.summary, maxsplit=1)[0]


def list_queries() -> list[QueryInfo]:
    """Every named query, by name."""
    return [query_info(name) for name in sql.names("queries")]


def query_info(name: str) -> QueryInfo:
    """What is said of a named query; UnknownName, with the nearest, if there is none of that name."""
    file = _named(name)
    return QueryInfo(file.name, file.grain, file.summary, file.parameters)


def _named(name: str) -> sql.SqlFile:
    if name not in sql.names("queries"):
        raise UnknownName.among("query", name, sql.names("queries"))
    return sql.read("queries", name)


def query(connection: duckdb.DuckDBPyConnection, name: str, params: Mapping[str, Any] | None = None) -> pa.Table:
    """The answer of a named query. `params` replace its defaults; text is taken as the parameter's type.

    Raises UnknownName for a query, parameter or capture that does not exist, UsageError for a value of another type,
    MissingPart or DamagedPart where a file that it needs cannot be read.
    """
    file = _named(name)
    values = bound(file, params or {})
    check_capture(connection, values.get("capture"))
    return fetch(connection, file.body, values)


def run_sql(connection: duckdb.DuckDBPyConnection, text: str) -> pa.Table:
    """The answer of one statement that reads: SELECT, DESCRIBE, SHOW, SUMMARIZE, or EXPLAIN of one.

    Raises UnknownName with the nearest table or column, UsageError for other mistakes and for what would write,
    MissingPart or DamagedPart where a file that it needs cannot be read.
    """
    with translate_sql_errors(connection, text):
        statements = connection.extract_statements(text)
        reads = [_reads(connection, statement) for statement in statements]
    if len(statements) != 1:
        raise UsageError("one SQL statement", got=f"{len(statements)}", remedy="Ask one question at a time.")
    if not reads[0]:
        raise UsageError(
            "a statement that reads (select, describe, show, summarize, explain)",
            got=statements[0].type.name.lower(),
            remedy="To write, open warehouse.duckdb with DuckDB.",
        )
    if names := sorted(statements[0].named_parameters):
        raise UsageError("SQL without parameters", got=f"${', $'.join(names)}", remedy="Write the values into it.")
    return fetch(connection, text, {})


def fetch(connection: duckdb.DuckDBPyConnection, text: str, values: Mapping[str, Any]) -> pa.Table:
    """Run one statement to its end; DuckDB's errors come out as the family's."""
    with translate_sql_errors(connection, text):
        answer = interruptible(connection, lambda: connection.sql(text, params=dict(values)).to_arrow_table())
    return _told_apart(answer)


def _told_apart(table: pa.Table) -> pa.Table:
    """Columns of one name as `a`, `a_1`, as DuckDB itself calls them in a subquery: rows are read by name."""
    taken, names = set(table.column_names), []
    for name in table.column_names:
        free = (f"{name}_{n}" for n in count(1) if f"{name}_{n}" not in taken)
        names.append(next(free) if name in names else name)
        taken.add(names[-1])
    return table.rename_columns(names)


def _reads(connection: duckdb.DuckDBPyConnection, statement: Any) -> bool:
    """True for a SELECT and its kin. EXPLAIN ANALYZE runs what it explains, so that has to read too."""
    if statement.type == duckdb.StatementType.SELECT:
        return True
    if statement.type != duckdb.StatementType.EXPLAIN:
        return False
    words = statement.query.split(maxsplit=2)
    rest = words[2] if len(words) > 2 and words[1].lower() == "analyze" else statement.query.split(maxsplit=1)[1]
    return _reads(connection, connection.extract_statements(rest)[0])


def bound(file: sql.SqlFile, given: Mapping[str, Any]) -> dict[str, Any]:
    """The values of all parameters of a query or check: those given, else the defaults."""
    known = {p.name: p for p in file.parameters}
    for name in given:
        if name not in known:
            raise UnknownName.among("parameter", name, known, where=f"query {file.name}")
    return {name: _typed(file, p, given[name]) if name in given else p.default for name, p in known.items()}


_KINDS: dict[str, tuple[type, str]] = {
    "integer": (int, "a whole number"),
    "double": (float, "a number"),
    "varchar": (str, "text"),
}


def _typed(file: sql.SqlFile, parameter: sql.Parameter, value: Any) -> Any:
    if value is None or (isinstance(value, str) and value.lower() == "null"):
        if parameter.takes_null:
            return None
        raise _unfit(file, parameter, f"a value for {parameter.name}", "null")
    if parameter.type == "boolean":
        kind, words = _truth, "true or false"
    else:
        kind, words = _KINDS[parameter.type]
    try:
        if isinstance(value, bool) and parameter.type != "boolean":
            raise ValueError
        found = kind(value)
    except (TypeError, ValueError) as error:
        raise _unfit(file, parameter, f"{words} for {parameter.name}", repr(value)) from error
    if parameter.type == "integer" and found < 0:  # numbers and counts of things
        raise _unfit(file, parameter, f"{words} of at least 0 for {parameter.name}", repr(value))
    if parameter.words and found not in parameter.words:
        raise UnknownName.among(parameter.name, str(found), parameter.words, where=f"query {file.name}")
    return found


def _unfit(file: sql.SqlFile, parameter: sql.Parameter, expected: str, got: str) -> UsageError:
    return UsageError(expected, got=got, where=f"query {file.name}", remedy=f"It is: {parameter.meaning}")


def _truth(value: Any) -> bool:
    text = str(value).lower()
    if text not in ("true", "false"):
        raise ValueError
    return text == "true"


def check_capture(connection: duckdb.DuckDBPyConnection, capture: str | None) -> None:
    """Raise UnknownName, with the nearest, for a capture of which the warehouse has no run."""
    if capture is not None and capture not in (known := captures(connection)):
        raise UnknownName.among("capture", capture, known)


def captures(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """Every capture that was asked for, sorted."""
    rows = fetch(connection, "select distinct capture from stages order by capture", {})
    return [str(capture) for capture in rows.column("capture").to_pylist()]
