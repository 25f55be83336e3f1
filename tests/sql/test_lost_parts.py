"""A part that is lost or damaged is an error that names its file, never fewer rows; what does not need it answers."""

from __future__ import annotations

import io
from collections.abc import Callable

import duckdb
import pyarrow.parquet as pq
import pytest

from storage.errors import DamagedPart, MissingPart
from storage.filesystem import LocalFolder
from storage.warehouse import connect, query, run_checks, run_sql, save_catalog, table_counts
from tasks.stages.registry import declared_checks, tables
from tests.sql.made_up_runs import MadeUp

Harm = Callable[[LocalFolder, str], None]


def delete(fs: LocalFolder, path: str) -> None:
    fs.remove(path)


def truncate(fs: LocalFolder, path: str) -> None:
    fs.write_bytes(path, fs.read_bytes(path)[:-20])


def empty(fs: LocalFolder, path: str) -> None:
    fs.write_bytes(path, b"")


def fewer_rows(fs: LocalFolder, path: str) -> None:
    """A whole Parquet file, only not the one that was published."""
    buffer = io.BytesIO()
    pq.write_table(pq.read_table(fs.absolute(path)).slice(0, 3), buffer)
    fs.write_bytes(path, buffer.getvalue())


def garbage(fs: LocalFolder, path: str) -> None:
    """The size that the record says, but not Parquet."""
    fs.write_bytes(path, b"x" * fs.size(path))


HARMS: list[tuple[Harm, type[Exception], str]] = [
    (delete, MissingPart, "got no file"),
    (truncate, DamagedPart, "expected a part of .* bytes"),
    (empty, DamagedPart, "got 0 bytes"),
    (fewer_rows, DamagedPart, "expected a part of .* bytes"),
    (garbage, DamagedPart, "No magic bytes"),
]
AFTER = {delete: "no file", empty: "too small", truncate: "No magic bytes", garbage: "No magic bytes"}
"""What is said of a file that was harmed after the views were made. A whole file of other rows DuckDB cannot tell."""


def part_of(fs: LocalFolder, table: str, index: int, capture: str = "alpha") -> str:
    return [p for p in fs.list(f"{capture}/tables/{table}") if p.endswith(".parquet")][index]


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize(("harm", "error", "message"), HARMS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_harmed_part_raises_and_is_named(
    runs: LocalFolder, harm: Harm, error: type[Exception], message: str, index: int
) -> None:
    path = part_of(runs, "contribution_rows", index)
    harm(runs, path)
    connection = connect(runs, tables())
    for text in (
        "select count(*) from contribution_rows",
        "select * from contribution_rows where doc = 0",
        "select * from contribution_rows where output_norm < 0",
        "select max(output_norm) from contribution_rows where capture = 'alpha'",
        "select count(*) from contribution_rows_history",
        "select count(*) from documents where doc not in (select doc from contribution_rows)",
    ):
        with pytest.raises(error, match=message) as caught:
            run_sql(connection, text)
        assert runs.absolute(path) in str(caught.value)
        assert "again" in str(caught.value)


@pytest.mark.parametrize(("harm", "error", "message"), HARMS, ids=lambda value: getattr(value, "__name__", ""))
def test_what_does_not_need_the_part_answers(
    runs: LocalFolder, harm: Harm, error: type[Exception], message: str
) -> None:
    MadeUp(runs, "beta").publish()
    harm(runs, part_of(runs, "contribution_rows", 0))
    connection = connect(runs, tables())
    assert run_sql(connection, "select count(*) as n from sink_geometry").column("n")[0].as_py() == 320
    if harm is not garbage:  # not known before DuckDB opens it, unless it is the first of its view
        other = run_sql(connection, "select count(*) as n from contribution_rows where capture = 'beta'")
        assert other.column("n")[0].as_py() == 192
    with pytest.raises(error, match=message):
        run_sql(connection, "select count(*) from contribution_rows")


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("harm", [delete, truncate, empty, garbage])
def test_a_part_harmed_after_the_views_were_made_raises_too(runs: LocalFolder, harm: Harm, index: int) -> None:
    connection = connect(runs, tables())
    path = part_of(runs, "contribution_rows", index)
    harm(runs, path)
    expected = MissingPart if harm is delete else DamagedPart
    with pytest.raises(expected, match=AFTER[harm]) as caught:
        run_sql(connection, "select sum(output_norm) from contribution_rows")
    assert runs.absolute(path) in str(caught.value)
    with pytest.raises(expected):
        run_checks(connection, declared_checks(), only=["contribution_rows_sum_intra"])


def test_queries_and_checks_name_the_part(runs: LocalFolder) -> None:
    path = part_of(runs, "sink_geometry", 0)
    runs.remove(path)
    connection = connect(runs, tables())
    with pytest.raises(MissingPart, match="sink_geometry"):
        query(connection, "sink_suppression")
    with pytest.raises(MissingPart, match="sink_geometry"):
        run_checks(connection, declared_checks())


@pytest.mark.parametrize("harm", [delete, truncate, fewer_rows])
def test_the_saved_catalog_names_the_part(runs: LocalFolder, harm: Harm) -> None:
    path = part_of(runs, "contribution_rows", 0)
    harm(runs, path)
    saved = save_catalog(runs, tables())
    with duckdb.connect(saved, read_only=True) as connection:
        with pytest.raises(duckdb.Error, match=r"part-00000\.parquet"):
            connection.execute("select count(*) from contribution_rows").fetchall()
        assert connection.execute("select count(*) from tokens").fetchall() == [(24,)]


def test_counts_do_not_open_the_parts(runs: LocalFolder) -> None:
    runs.remove(part_of(runs, "contribution_rows", 0))
    assert table_counts(runs, tables())["contribution_rows"] == 192


def test_a_lost_row_of_the_table_of_stages_is_named(runs: LocalFolder) -> None:
    runs.remove(part_of(runs, "stages", 1))
    with pytest.raises(MissingPart, match=r"the part of stages that the manifest names.*choices-"):
        run_sql(connect(runs, tables()), "select * from stages")


def test_a_part_that_is_put_in_place_while_we_look_is_waited_for(
    runs: LocalFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = part_of(runs, "contribution_rows", 0)
    data = runs.read_bytes(path)
    runs.remove(path)
    monkeypatch.setattr("storage.catalog.time.sleep", lambda _seconds: runs.write_bytes(path, data))
    found = run_sql(connect(runs, tables()), "select count(*) as n from contribution_rows")
    assert found.column("n")[0].as_py() == 192
