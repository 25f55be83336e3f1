"""A query that never ends, for tests that interrupt DuckDB while it works.

As a program, `python -m tests.endless`, it is the command `theodolite sql` on that query: it prints `begun` once
DuckDB works on it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from unittest.mock import patch

import duckdb


def endless_query(connection: duckdb.DuckDBPyConnection, begun: Callable[[], None]) -> str:
    """The query for this connection, which calls `begun` when DuckDB has begun to work on it."""

    def call() -> int:
        begun()
        return 1

    connection.create_function("begun", call, [], "BIGINT", side_effects=True)
    return (
        "select max(a.range * b.range % 7 + c.one) from (select begun() as one) c, range(10000000) a, range(10000000) b"
    )


if __name__ == "__main__":
    from flows.cli import main
    from storage import queries

    interruptible = queries.interruptible

    def asked(connection: duckdb.DuckDBPyConnection, _work: Callable[[], object]) -> object:
        query = endless_query(connection, lambda: print("begun", flush=True))  # noqa: T201
        return interruptible(connection, lambda: connection.sql(query).to_arrow_table())

    with patch.object(queries, "interruptible", asked):
        sys.argv = ["theodolite", "sql", "select 1", "--runs", ".", "--json"]
        main()
