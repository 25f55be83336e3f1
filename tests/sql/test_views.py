"""The views: their columns, what is current, what an undefined number becomes; no file is found by a pattern."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sql
from storage.filesystem import LocalFolder, open_runs
from storage.tables import TableSpec
from storage.warehouse import connect, run_sql, table_counts
from tasks.stages.registry import tables
from tests.sql.made_up import DOCS, HEADS, LAYERS, TOKENS, Columns
from tests.sql.made_up_runs import FINALS, REPLAYS, SHARDS, MadeUp

SQL_TYPES = {
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "VARCHAR",
    pa.bool_(): "BOOLEAN",
}
ROWS = DOCS * LAYERS * HEADS * TOKENS


def described(connection: duckdb.DuckDBPyConnection, view: str) -> list[tuple[str, str]]:
    return [(str(row[0]), str(row[1])) for row in connection.execute(f"describe {view}").fetchall()]


def count(connection: duckdb.DuckDBPyConnection, view: str) -> int:
    return int(run_sql(connection, f"select count(*) as n from {view}").column("n")[0].as_py())


@pytest.mark.parametrize("spec", tables().values(), ids=lambda spec: spec.name)
def test_every_table_has_a_view_with_its_grain_and_a_meaning_for_each_column(spec: TableSpec) -> None:
    view = sql.read("views", spec.name)
    assert view.keys == spec.grain
    assert list(view.column_meanings()) == spec.schema.names


def test_there_is_no_view_of_an_unknown_table() -> None:
    assert set(sql.names("views")) == set(tables())


@pytest.mark.parametrize("suffix", ["", "_history"])
def test_columns_and_types_are_those_declared_with_parts_and_without(
    warehouse: duckdb.DuckDBPyConnection, tmp_path: Path, suffix: str
) -> None:
    (tmp_path / "none").mkdir()
    empty = connect(open_runs(str(tmp_path / "none")), tables())
    for spec in tables().values():
        declared = [(field.name, SQL_TYPES[field.type]) for field in spec.schema]
        assert described(warehouse, spec.name + suffix) == declared
        assert described(empty, spec.name + suffix) == declared
        assert count(empty, spec.name + suffix) == 0
        assert count(warehouse, spec.name + suffix) > 0


def test_rows_are_those_that_were_written(warehouse: duckdb.DuckDBPyConnection, runs: LocalFolder) -> None:
    assert count(warehouse, "contribution_rows") == ROWS
    for table, n in table_counts(runs, tables()).items():
        assert count(warehouse, table) == n


@pytest.mark.parametrize("suffix", ["", "_history"])
def test_nan_is_null_in_every_float_column(tmp_path: Path, suffix: str) -> None:
    def undefine(spec: TableSpec) -> Callable[[Columns], None]:
        def change(columns: Columns) -> None:
            for field in spec.schema:
                if pa.types.is_floating(field.type):
                    columns[field.name] = np.where(np.arange(len(columns[field.name])) == 0, np.nan, 1.0)

        return change

    fs = open_runs(str(tmp_path), create=True)
    MadeUp(fs, "alpha", changes={spec.name: undefine(spec) for spec in tables().values()}).publish()
    connection = connect(fs, tables())
    for spec in tables().values():
        changed = "doc < 2" if "doc" in spec.grain else "true"  # the first shard's
        for column in (f.name for f in spec.schema if pa.types.is_floating(f.type)):
            nulls, nans, largest = connection.execute(
                f"select count(*) - count({column}), count(*) filter (where isnan({column})), max({column}) "
                f"from {spec.name}{suffix} where {changed}"
            ).fetchall()[0]
            assert (nulls, nans) == (1, 0), f"{spec.name}.{column}"
            assert largest is None or not np.isnan(largest)


def test_nan_is_null_even_where_a_file_s_statistics_say_that_there_is_none(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": pa.array([float("nan"), 1.0], pa.float32())}), tmp_path / "x.parquet")
    connection = duckdb.connect()
    connection.execute(sql.macros())
    shown = connection.execute(f"select nan_to_null(x), isnan(nan_to_null(x)) from '{tmp_path}/x.parquet'").fetchall()
    assert shown == [(None, None), (1.0, False)]


def test_parts_carry_no_statistics_of_floats(runs: LocalFolder) -> None:
    path = next(p for p in runs.list("alpha/tables/tokens") if p.endswith(".parquet"))
    group = pq.read_metadata(runs.absolute(path)).row_group(0)
    kept = {group.column(i).path_in_schema: group.column(i).is_stats_set for i in range(group.num_columns)}
    assert kept["doc"]
    assert not kept["nll"]


def test_infinity_is_kept(broken: Callable[..., duckdb.DuckDBPyConnection]) -> None:
    def change(columns: Columns) -> None:
        columns["alpha"][0] = np.inf

    assert broken(contribution_edges=change).execute("select max(alpha) from contribution_edges").fetchall() == [
        (np.inf,)
    ]


def test_a_table_shows_the_run_that_was_asked_for_last_and_history_all(runs: LocalFolder) -> None:
    alpha = MadeUp(runs, "alpha")
    alpha.contributions(variant=1, requested=5)
    connection = connect(runs, tables())
    assert count(connection, "contribution_rows") == ROWS
    assert count(connection, "contribution_rows_history") == 2 * ROWS
    keys = run_sql(connection, "select distinct stage_key from contribution_rows").column("stage_key").to_pylist()
    assert keys == [alpha.key("contributions", 1)]
    status = "select params, status from stages where stage = 'contributions' order by params"
    assert run_sql(connection, status).column("status").to_pylist() == ["stale", "done"]
    raw = run_sql(connection, status.replace("from stages", "from stages_history"))
    assert raw.column("status").to_pylist() == ["done", "done"]

    alpha.run("contributions", 0, requested=9)  # the older parameters again
    connection = connect(runs, tables())
    keys = run_sql(connection, "select distinct stage_key from contribution_rows").column("stage_key").to_pylist()
    assert keys == [alpha.key("contributions", 0)]
    assert run_sql(connection, status).column("status").to_pylist() == ["done", "stale"]
    assert table_counts(runs, tables())["contribution_rows"] == ROWS


def test_another_capture_s_run_makes_nothing_stale(runs: LocalFolder) -> None:
    beta = MadeUp(runs, "beta")
    beta.capture()
    beta.contributions(variant=1, requested=9)
    connection = connect(runs, tables())
    assert count(connection, "contribution_rows") == 2 * ROWS
    assert count(connection, "stages where status = 'done'") == 1 + len({*SHARDS, *FINALS, *REPLAYS}) + 2


def test_a_partial_run_is_shown_and_its_status_says_so(tmp_path: Path) -> None:
    fs = open_runs(str(tmp_path), create=True)
    alpha = MadeUp(fs, "alpha")
    alpha.capture()
    alpha.contributions(shards=(1,))
    connection = connect(fs, tables())
    assert count(connection, "contribution_rows") == ROWS // 2
    assert count(connection, "sink_fit") == 0
    rows = run_sql(connection, "select status, shards_done, shards_total from stages where stage = 'contributions'")
    assert rows.to_pylist() == [{"status": "partial", "shards_done": 1, "shards_total": 2}]


def test_a_file_that_no_record_names_is_not_shown(runs: LocalFolder) -> None:
    part = next(p for p in runs.list("alpha/tables/contribution_rows") if p.endswith(".parquet"))
    runs.write_bytes(part.replace("part-00000", "part-00007"), runs.read_bytes(part))
    assert count(connect(runs, tables()), "contribution_rows_history") == ROWS


@pytest.mark.parametrize("name", ["it's", "[a]b*c?", "run=7", "a b", "ünïcödé", 'quo"te'])
def test_the_folder_may_have_any_name_and_is_never_a_pattern(tmp_path: Path, name: str) -> None:
    fs = open_runs(str(tmp_path / name), create=True)
    decoy = open_runs(str(tmp_path / "abxcy"), create=True)  # what [a]b*c? would match
    for place in (fs, decoy):
        MadeUp(place, "alpha").publish()
    connection = connect(fs, tables())
    assert count(connection, "contribution_rows") == ROWS
    lost = next(p for p in fs.list("alpha/tables/contribution_rows") if p.endswith(".parquet"))
    fs.remove(lost)
    with pytest.raises(FileNotFoundError, match="part-0000") as caught:
        count(connection, "contribution_rows")
    assert fs.absolute(lost) in str(caught.value)


def test_an_older_version_s_part_without_a_column_shows_null_there(tmp_path: Path) -> None:
    fs = open_runs(str(tmp_path), create=True)
    older = MadeUp(fs, "alpha", changes={"contribution_edges": lambda columns: columns.pop("cw_inter")})
    spec = tables()["contribution_edges"]
    schema = spec.schema.remove(spec.schema.get_field_index("cw_inter"))
    older.specs = {**tables(), "contribution_edges": dataclasses.replace(spec, schema=schema)}
    older.version = 0
    older.capture()
    older.contributions(variant=0, shards=(0,))
    MadeUp(fs, "alpha").contributions(variant=1, requested=5)
    connection = connect(fs, tables())
    counted = "select count(*) as n, count(cw_inter) as defined, count(cosine) as cosines from contribution_edges"
    assert set(run_sql(connection, counted).to_pylist()[0].values()) == {480}
    assert run_sql(connection, f"{counted}_history").to_pylist() == [{"n": 720, "defined": 480, "cosines": 720}]


def test_macros(warehouse: duckdb.DuckDBPyConnection) -> None:
    perplexity = warehouse.execute(
        "select perplexity(s, n) from (values (1.0::double, 2), (3.0, 2)) as losses(s, n)"
    ).fetchall()[0][0]
    assert perplexity == pytest.approx(np.exp(1))
    config = {dtype: f'{{"store_dtypes": {{"attention": "{dtype}"}}}}' for dtype in ("float32", "float16")}
    for value, attention, tolerance in (
        ("float32", "float32", 1e-5),
        ("float16", "float32", 1e-3),
        ("float32", "float16", 1e-3),
        ("bfloat16", "float16", 1e-3),
    ):
        found = warehouse.execute("select identity_tolerance(?, ?)", [value, config[attention]]).fetchall()[0][0]
        assert float(found) == tolerance
    for compute, attention, tolerance in (
        ("float32", "float32", 1e-5),
        ("float16", "float32", 1e-3),
        ("float32", "float16", 1e-3),
        ("bfloat16", "float16", 5e-3),
    ):
        found = warehouse.execute("select row_sum_tolerance(?, ?)", [compute, config[attention]]).fetchall()[0][0]
        assert float(found) == tolerance


def test_a_name_in_a_query_is_a_table_and_not_a_python_variable(warehouse: duckdb.DuckDBPyConnection) -> None:
    tokenz = pa.table({"a": [1]})  # noqa: F841 - DuckDB would find it in the caller's frame
    with pytest.raises(LookupError, match="Did you mean 'tokens'"):
        run_sql(warehouse, "select * from tokenz")
