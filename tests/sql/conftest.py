"""A small folder of runs with consistent made-up data, and one with data that break an identity."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pytest

from storage.filesystem import LocalFolder, open_runs
from storage.warehouse import connect
from tasks.stages.registry import tables
from tests.sql.made_up import Columns
from tests.sql.made_up_runs import MadeUp


@pytest.fixture(autouse=True)
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is on the disk after a power cut is not tested here, and waiting for it takes most of the time."""
    monkeypatch.setattr("os.fsync", lambda _file: None)


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> LocalFolder:
    """One capture, `alpha`, whose contributions are done. Not to be changed: tests share it."""
    fs = open_runs(str(tmp_path_factory.mktemp("published")), create=True)
    MadeUp(fs, "alpha").publish()
    return fs


@pytest.fixture
def runs(published: LocalFolder, tmp_path: Path) -> LocalFolder:
    """A copy of `published` that the test may change."""
    shutil.copytree(published.where, tmp_path / "runs")
    return open_runs(str(tmp_path / "runs"), create=True)


@pytest.fixture(scope="session")
def warehouse(published: LocalFolder) -> Iterator[duckdb.DuckDBPyConnection]:
    with connect(published, tables()) as connection:
        yield connection


@pytest.fixture(scope="session")
def breakable(
    published: LocalFolder, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[LocalFolder, duckdb.DuckDBPyConnection]]:
    """A copy of `published` and a warehouse that reads its files anew at every question."""
    where = tmp_path_factory.mktemp("breakable") / "runs"
    shutil.copytree(published.where, where)
    fs = open_runs(str(where), create=True)
    with connect(fs, tables()) as connection:
        connection.execute("set enable_external_file_cache = false")
        yield fs, connection


@pytest.fixture
def broken(
    breakable: tuple[LocalFolder, duckdb.DuckDBPyConnection],
) -> Iterator[Callable[..., duckdb.DuckDBPyConnection]]:
    """A warehouse over a capture whose data are changed by the function given, table by table, until the test ends."""
    fs, connection = breakable
    changed: set[str] = set()

    def make(store_dtype: str = "float32", **changes: Callable[[Columns], None]) -> duckdb.DuckDBPyConnection:
        changed.update(changes)
        MadeUp(fs, "alpha", changes=changes, store_dtype=store_dtype).republish()
        return connection

    yield make
    MadeUp(fs, "alpha", changes=dict.fromkeys(changed, lambda _columns: None)).republish()
