"""Free SQL: it reads and never writes, and its mistakes come with the nearest name."""

from __future__ import annotations

import re
import signal
import threading
from pathlib import Path

import duckdb
import pytest

from storage.errors import UnknownName, UsageError
from storage.sql_errors import interruptible
from storage.warehouse import run_sql
from tests.endless import endless_query


@pytest.mark.parametrize(
    "text",
    [
        "select 1 as x",
        "from heads",
        "with h as (select head from heads) select * from h",
        "describe tokens",
        "show tables",
        "summarize heads",
        "explain select * from heads",
        "explain analyze select count(*) from heads",
        "-- a remark\nselect 1 as x;  -- another",
    ],
)
def test_what_reads_is_answered(warehouse: duckdb.DuckDBPyConnection, text: str) -> None:
    assert run_sql(warehouse, text).num_rows > 0


def test_columns_keep_their_names_and_order(warehouse: duckdb.DuckDBPyConnection) -> None:
    table = run_sql(warehouse, "select head, layer, weight_norm_v as norm from heads order by layer, head")
    assert table.column_names == ["head", "layer", "norm"]
    assert table.column("head").to_pylist() == [0, 1, 2, 3] * 2


@pytest.mark.parametrize(
    "text",
    [
        "create table mine as select 1",
        "copy heads to '{file}'",
        "explain analyze copy heads to '{file}'",
        "export database '{file}'",
        "attach '{file}' as other",
        "insert into heads select * from heads",
        "drop view heads",
        "set threads = 1",
        "install httpfs",
    ],
)
def test_what_writes_is_refused(warehouse: duckdb.DuckDBPyConnection, tmp_path: Path, text: str) -> None:
    file = tmp_path / "written"
    with pytest.raises(UsageError, match="a statement that reads"):
        run_sql(warehouse, text.format(file=file))
    assert not file.exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("select 1; select 2", "one SQL statement, got 2"),
        ("", "one SQL statement, got 0"),
        ("-- nothing", "one SQL statement, got 0"),
        ("selec 1", 'syntax error at or near "selec"'),
        ("select cast('a' as integer)", "Could not convert string 'a'"),
        ("select head, count(*) from heads", 'column "head" must appear in the GROUP BY clause'),
        ("select nosuchfunction(head) from heads", "nosuchfunction"),
        ("select * from heads where layer = $layer", "SQL without parameters, got $layer"),
    ],
)
def test_mistakes_are_usage_errors(warehouse: duckdb.DuckDBPyConnection, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        run_sql(warehouse, text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("select * from token_score", "the name of a table, got 'token_score'. Did you mean 'token_scores'"),
        ("select * from zzz", "got 'zzz'. Known: captures, captures_history, choices"),
        ("select head, weight_norm from heads", "got 'weight_norm', in heads. Did you mean 'weight_norm_"),
        ("select heads.headd from heads", "got 'headd', in heads. Did you mean 'head'"),
        ("select outputnorm from heads join contribution_rows using (capture)", "Did you mean 'output_norm'"),
        ("select tokenz.nll from tokens", "the name of a table, got 'tokenz'. Did you mean 'tokens'"),
    ],
)
def test_unknown_names_come_with_the_nearest(warehouse: duckdb.DuckDBPyConnection, text: str, message: str) -> None:
    with pytest.raises(UnknownName, match=re.escape(message)):
        run_sql(warehouse, text)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("select 1 as a, 2 as a, 3 as b", ["a", "a_1", "b"]),
        ("select 1 as a, 2 as a, 3 as a_1, 4 as a", ["a", "a_2", "a_1", "a_3"]),
        ("select * from heads as x join heads as y using (capture, layer, head) limit 0", None),
    ],
)
def test_columns_of_one_name_are_told_apart(
    warehouse: duckdb.DuckDBPyConnection, text: str, names: list[str] | None
) -> None:
    table = run_sql(warehouse, text)
    assert len(set(table.column_names)) == table.num_columns
    if names:
        assert (table.column_names, list(table.to_pylist()[0])) == (names, names)


def test_interrupted_before_the_query_began(warehouse: duckdb.DuckDBPyConnection) -> None:
    main = threading.main_thread().ident or 0
    ctrl_c = threading.Thread(target=signal.pthread_kill, args=(main, signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        ctrl_c.start()
        run_sql(warehouse, "select max(a.range * b.range % 7) from range(10000000) as a, range(10000000) as b")
    ctrl_c.join()
    assert run_sql(warehouse, "select 1 as one").to_pylist() == [{"one": 1}]


@pytest.mark.parametrize("attempt", range(5))
def test_interrupted_in_duckdb_is_an_interrupt(attempt: int) -> None:
    """Every time: DuckDB's own look at signals ends about every second query of this kind."""
    main = threading.main_thread().ident or 0
    with duckdb.connect() as connection:
        query = endless_query(connection, lambda: signal.pthread_kill(main, signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            run_sql(connection, query)
        assert run_sql(connection, "select 1 as one").to_pylist() == [{"one": 1}]


def test_an_error_of_the_work_is_told_as_it_is(warehouse: duckdb.DuckDBPyConnection) -> None:
    def work() -> None:
        raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        interruptible(warehouse, work)
