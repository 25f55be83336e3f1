"""warehouse.duckdb opens in any DuckDB client, and is replaced under those that have it open."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import pytest

import sql
from storage.errors import StorageReadOnly
from storage.filesystem import LocalFolder, open_runs
from storage.warehouse import save_catalog
from tasks.stages.registry import tables
from tests.sql.made_up_runs import MadeUp

CLIENT = """
import duckdb, json, sys
connection = duckdb.connect(sys.argv[1], **json.loads(sys.argv[2]))
print(json.dumps(connection.execute(sys.argv[3]).fetchall()), flush=True)
if len(sys.argv) > 4:
    sys.stdin.readline()
    print(json.dumps(connection.execute(sys.argv[4]).fetchall()), flush=True)
"""


def client(path: str, text: str, cwd: Path, **options: bool) -> list[list[object]]:
    """What another process, which knows nothing of the project, gets as its answer."""
    run = subprocess.run(
        [sys.executable, "-c", CLIENT, path, json.dumps(options), text],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=True,
    )
    return list(json.loads(run.stdout))


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("options", [{}, {"read_only": True}])
def test_opens_from_another_folder_in_another_process(
    runs: LocalFolder, elsewhere: Path, options: dict[str, bool]
) -> None:
    saved = save_catalog(runs, tables())
    text = "select count(*), count(nll), max(nll) < 1 from tokens"
    assert client(saved, text, elsewhere, **options) == [[24, 20, True]]


def test_is_in_the_format_that_every_client_since_1_0_opens(runs: LocalFolder) -> None:
    with duckdb.connect(save_catalog(runs, tables()), read_only=True) as connection:
        (tags,) = connection.execute("select tags from duckdb_databases() where database_name = 'warehouse'").fetchall()
    assert tags[0]["storage_version"].startswith("v1.0.0")


def test_works_when_attached_under_another_name(runs: LocalFolder) -> None:
    saved = save_catalog(runs, tables())
    with duckdb.connect() as connection:
        connection.execute(f"attach '{saved}' as theirs (read_only)")
        assert connection.execute("select count(nll) from theirs.tokens").fetchall() == [(20,)]


def test_every_table_and_column_has_its_comment(runs: LocalFolder) -> None:
    with duckdb.connect(save_catalog(runs, tables()), read_only=True) as connection:
        views = dict(connection.execute("select view_name, comment from duckdb_views() where not internal").fetchall())
        columns = connection.execute(
            "select table_name, column_name, comment from duckdb_columns() where not internal"
        ).fetchall()
    found = {(table, column): comment for table, column, comment in columns}
    for spec in tables().values():
        view = sql.read("views", spec.name)
        for name in (spec.name, f"{spec.name}_history"):
            assert views[name] == f"{view.summary} Grain: {view.grain}."
            assert {c: found[name, c] for c in spec.schema.names} == view.column_meanings()


def test_is_replaced_while_another_process_has_the_old_one_open(runs: LocalFolder, elsewhere: Path) -> None:
    saved = save_catalog(runs, tables())
    text = "select count(*) from captures"
    with subprocess.Popen(
        [sys.executable, "-c", CLIENT, saved, "{}", text, text],
        cwd=elsewhere,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as old:
        assert old.stdout is not None
        assert json.loads(old.stdout.readline()) == [[1]]
        MadeUp(runs, "beta").publish()
        save_catalog(runs, tables())
        assert client(saved, text, elsewhere) == [[2]]
        answer, _ = old.communicate("\n", timeout=60)
    assert json.loads(answer) == [[1]]


def test_a_dead_client_s_log_is_not_taken_for_the_new_file_s(runs: LocalFolder, elsewhere: Path) -> None:
    saved = save_catalog(runs, tables())
    killed = "import duckdb, os, sys; c = duckdb.connect(sys.argv[1]); c.execute('create table t (x int)'); os._exit(0)"
    subprocess.run([sys.executable, "-c", killed, saved], cwd=elsewhere, check=True)
    assert Path(f"{saved}.wal").exists()
    MadeUp(runs, "beta").publish()
    save_catalog(runs, tables())
    left = client(saved, "select table_name from duckdb_tables()", elsewhere)
    assert left == []
    assert client(saved, "select count(*) from captures", elsewhere) == [[2]]


def test_several_at_once_leave_one_whole_file_and_nothing_else(runs: LocalFolder, elsewhere: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        saved = set(pool.map(lambda _: save_catalog(runs, tables()), range(4)))
    assert saved == {runs.absolute("warehouse.duckdb")}
    assert client(saved.pop(), "select count(*) from captures", elsewhere) == [[1]]
    assert {p.name for p in Path(runs.where).iterdir()} == {"alpha", "warehouse.duckdb"}


def test_of_an_empty_folder_has_every_table(tmp_path: Path, elsewhere: Path) -> None:
    fs = open_runs(str(tmp_path / "none"), create=True)
    names = client(save_catalog(fs, tables()), "select view_name from duckdb_views() where not internal", elsewhere)
    assert {name for (name,) in names} == {n + suffix for n in tables() for suffix in ("", "_history")}


def test_a_folder_that_cannot_be_written_is_said(runs: LocalFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.fsync", refuse)
    with pytest.raises(StorageReadOnly, match=r"warehouse\.duckdb"):
        save_catalog(runs, tables())
