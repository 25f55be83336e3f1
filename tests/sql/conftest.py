"""A small folder of runs with consistent made-up data, and one with real captures' shape, for the warehouse's tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from storage.filesystem import LocalFolder, open_runs
from storage.warehouse import connect
from tasks.registry import tables
from tests.sql.made_up import Columns, MadeUp


@pytest.fixture
def runs(tmp_path: Path) -> LocalFolder:
    """One capture, `alpha`, whose contributions are done."""
    fs = open_runs(str(tmp_path / "runs"), create=True)
    MadeUp(fs, "alpha").publish()
    return fs


@pytest.fixture
def warehouse(runs: LocalFolder) -> duckdb.DuckDBPyConnection:
    return connect(runs, tables())


@pytest.fixture
def broken(tmp_path: Path) -> Callable[..., duckdb.DuckDBPyConnection]:
    """A warehouse over a capture whose data are changed by the function given, table by table."""

    def make(**changes: Callable[[Columns], None]) -> duckdb.DuckDBPyConnection:
        fs = open_runs(str(tmp_path / "broken"), create=True)
        MadeUp(fs, "alpha", changes=changes).publish()
        return connect(fs, tables())

    return make
