"""The warehouse: DuckDB views over every published part of every table, on a connection and as a saved catalog."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import duckdb

import sql
from storage.catalog import STAGES_TABLE, Catalog, Run, TablePart, damaged, find_problem, read_catalog
from storage.checks import CheckResult, run_checks
from storage.filesystem import Filesystem
from storage.layout import WAREHOUSE
from storage.queries import QueryInfo, list_queries, query, query_info, run_sql
from storage.sql_errors import interruptible
from storage.tables import TableSpec
from storage.views import comments, create_view, file_literal, text_literal

__all__ = [
    "CheckResult",
    "QueryInfo",
    "connect",
    "list_queries",
    "query",
    "query_info",
    "run_checks",
    "run_sql",
    "save_catalog",
    "table_counts",
]

_CATALOG_FORMAT = "v1.0.0"
"""DuckDB's file format of the saved catalog: the oldest that is stable, so that every client since 1.0 opens it."""

_SETTINGS: dict[str, bool] = {"python_enable_replacements": False, "autoinstall_known_extensions": False}
"""A name in a query is a table, never a Python variable of whoever calls; and nothing is fetched from the network."""

HISTORY = "_history"


def connect(fs: Filesystem, specs: Mapping[str, TableSpec]) -> duckdb.DuckDBPyConnection:
    """An in-memory connection with the macros and, for each table, the views `<table>` and `<table>_history`.

    `<table>` shows the rows of the current key of each capture, `<table>_history` those of every key. Opens the
    manifests and one Parquet footer a view. A lost or damaged part raises when a query needs it (`storage.queries`
    turns DuckDB's error into MissingPart or DamagedPart; the message names the file either way).
    """
    connection = duckdb.connect(config=_SETTINGS)
    # Its own folder to spill into, made and removed by DuckDB: two processes in one folder would overwrite each other.
    spill = Path(tempfile.gettempdir()) / f"theodolite-{os.getpid()}-{os.urandom(4).hex()}"
    connection.execute(f"set temp_directory = {text_literal(str(spill))}")
    _create(connection, fs, specs)
    return connection


def save_catalog(fs: Filesystem, specs: Mapping[str, TableSpec]) -> str:
    """Write WHERE/warehouse.duckdb, with a comment on every table and column; returns its absolute path.

    It replaces the old one by rename: a process that has the old one open keeps it. The paths inside are literal and
    absolute, so any DuckDB client opens it from anywhere; it is to be saved again after the folder was moved.
    """
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / WAREHOUSE
        connection = duckdb.connect(config=_SETTINGS)
        try:
            connection.execute(f"attach {text_literal(str(file))} as saved (storage_version '{_CATALOG_FORMAT}')")
            connection.execute("use saved")
            views = _create(connection, fs, specs)
            remarks = [statement for name, spec in views.items() for statement in comments(name, spec)]
            told = ";\n".join(["begin", *remarks, "commit", "use memory", "detach saved"])
            interruptible(connection, lambda: connection.execute(told))
        finally:
            connection.close()
        # A write-ahead log beside it belongs to a client that died with the old file open, not to the new file.
        fs.remove(f"{WAREHOUSE}.wal")
        fs.write_bytes(WAREHOUSE, file.read_bytes())
    return fs.absolute(WAREHOUSE)


def table_counts(fs: Filesystem, specs: Mapping[str, TableSpec]) -> dict[str, int]:
    """Rows of each table's current runs, as the manifests state them; no table is opened."""
    return read_catalog(fs, specs).counts()


def _create(
    connection: duckdb.DuckDBPyConnection, fs: Filesystem, specs: Mapping[str, TableSpec]
) -> dict[str, TableSpec]:
    """Macros and views in the connection's current catalog; returns each view's name with its table."""
    catalog = read_catalog(fs, specs)
    shown = [(view, spec, parts, runs) for name, spec in specs.items() for view, runs, parts in _shown(catalog, name)]

    def create() -> None:
        connection.execute(sql.macros())
        for view, spec, parts, runs in shown:
            _create_view(connection, fs, view, spec, parts, runs)

    interruptible(connection, create)
    return {view: spec for view, spec, _, _ in shown}


def _shown(catalog: Catalog, table: str) -> list[tuple[str, Sequence[Run], Sequence[TablePart]]]:
    """The two views of a table: name, the runs that count as current in it, its parts.

    The table `stages` keeps the rows of older runs in view, since it says of each whether it is stale.
    """
    current = [run for run in catalog.runs if run.current]
    parts = catalog.parts[table]
    shown = parts if table == STAGES_TABLE else [part for part in parts if part.run.current]
    return [(f"{table}{HISTORY}", catalog.runs, parts), (table, current, shown)]


def _create_view(
    connection: duckdb.DuckDBPyConnection,
    fs: Filesystem,
    name: str,
    spec: TableSpec,
    parts: Sequence[TablePart],
    runs: Sequence[Run],
) -> None:
    """Create a view. DuckDB reads a footer to do so: a part that it cannot read joins those with a problem."""
    while True:
        try:
            connection.execute(create_view(fs, name, spec, parts, runs))
            return
        except duckdb.Error as error:
            blamed = [p for p in parts if not p.problem and _is_named(fs.absolute(p.path), str(error))]
            if not blamed:
                raise
            problem = find_problem(fs, blamed[0]) or damaged(fs, blamed[0], str(error).splitlines()[0])
            parts = [replace(p, problem=problem) if p is blamed[0] else p for p in parts]


def _is_named(path: str, message: str) -> bool:
    """True if DuckDB's message names this file, as it is or as `file_literal` wrote it."""
    return path in message or file_literal(path).strip("'") in message
