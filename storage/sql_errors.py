"""DuckDB's errors in the family's words: which name is wrong and what is nearest, which file is lost or damaged."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TypeVar

import duckdb

import sql
from storage.errors import DamagedPart, MissingPart, StoreError, TheodoliteError, UnknownName, UsageError

Answer = TypeVar("Answer")
_OWN = re.compile(r"(MissingPart|DamagedPart): expected (.+?), got (.+?), in (.+?\.parquet)\. (.+)", re.DOTALL)
"""What a view says of a part that could not be read when the view was made (see `storage.views`)."""
_FILE = re.compile(r"[\"'](\S.*?\.parquet)[\"']")
_LOST = re.compile(r"No files found|[Cc]annot open file|No such file")
_TABLE = re.compile(r"Table with name (\S+) does not exist")
_FUNCTION = re.compile(r"Table Function with name \"?(\w+)\"? does not exist")
_COLUMN = re.compile(r"(?:Referenced column|does not have a column named) \"([^\"]+)\"")
_ALIAS = re.compile(r"Referenced table \"([^\"]+)\" not found")
_TOLD_EVERY_S = 0.05
_VERIFY = (
    "Delete this file if it is there, and run the same stage of the capture again: it makes anew what is lost. "
    "`theodolite verify` reads the other files too."
)


def interruptible(connection: duckdb.DuckDBPyConnection, work: Callable[[], Answer]) -> Answer:
    """The answer of any work of DuckDB's, which Ctrl-C ends at once: whatever interrupts the wait stops the query.

    DuckDB looks for signals of its own while a query runs, but may then wait for ever for its other threads. So the
    query has a thread, and is interrupted until it stops.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="duckdb") as pool:
        answer = pool.submit(work)
        try:
            return answer.result()
        except BaseException:
            while not answer.done():  # told before the query began, it would not be heard
                connection.interrupt()
                wait([answer], timeout=_TOLD_EVERY_S)
            raise


@contextmanager
def translate_sql_errors(connection: duckdb.DuckDBPyConnection, text: str) -> Iterator[None]:
    """Turn an error of the statement `text` into UnknownName, UsageError, MissingPart, DamagedPart or StoreError."""
    try:
        yield
    except duckdb.Error as error:
        raise _translated(connection, text, error) from error


def _translated(connection: duckdb.DuckDBPyConnection, text: str, error: duckdb.Error) -> TheodoliteError:
    message = str(error)
    if own := _OWN.search(message):
        kind = MissingPart if own[1] == "MissingPart" else DamagedPart
        return kind(own[2], got=own[3], where=own[4], remedy=own[5])
    if file := _FILE.search(message):
        return _file_error(file[1], message)
    if isinstance(error, duckdb.IOException | duckdb.OutOfMemoryException | duckdb.InternalException):
        return StoreError("an answer from DuckDB", got=message)
    return _usage_error(connection, text, message)


def _file_error(path: str, message: str) -> StoreError:
    path = re.sub(r"\[([*?[])\]", r"\1", path)
    if _LOST.search(message):
        return MissingPart("a part that the manifest names", got="no file", where=path, remedy=_VERIFY)
    return DamagedPart("a whole Parquet file", got=message.splitlines()[0], where=path, remedy=_VERIFY)


def _usage_error(connection: duckdb.DuckDBPyConnection, text: str, message: str) -> UsageError:
    tables = _tables(connection)
    if (wrong := _TABLE.search(message) or _FUNCTION.search(message)) and wrong[1] in sql.names("queries"):
        return UnknownName(
            "the name of a table",
            got=f"'{wrong[1]}'",
            remedy=f"It is a named query: `theodolite query {wrong[1]}` asks it, in Python `query(connection, …)`.",
        )
    if wrong := _TABLE.search(message) or _ALIAS.search(message):
        return UnknownName.among("table", wrong[1], tables)
    if wrong := _COLUMN.search(message):
        named = [t for t in tables if re.search(rf"\b{t}\b", text, re.IGNORECASE)]
        known = {column for table in named for column in tables[table]}
        return UnknownName.among("column", wrong[1], known, where=", ".join(named))
    kind, _, what = message.partition(": ")
    return UsageError("SQL that DuckDB understands", got=f"{kind.lower()}: {what}" if what else message)


def _tables(connection: duckdb.DuckDBPyConnection) -> dict[str, list[str]]:
    """The columns of every table and view of the connection, from its catalog alone."""
    rows = connection.execute(
        "select table_name, list(column_name) from duckdb_columns() where not internal group by table_name"
    ).fetchall()
    return {str(name): [str(c) for c in columns] for name, columns in rows}
