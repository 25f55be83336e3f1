"""Prefect for these tests: one home for all commands, made once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flows import engine
from tests.flows.command import Answer, theodolite, theodolite_here


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """PREFECT_HOME of every command of the session: its database is made once."""
    return tmp_path_factory.mktemp("prefect")


@pytest.fixture
def call(home: Path, tmp_path: Path) -> Callable[..., Answer]:
    """Call `theodolite` in an empty folder, in a process of its own."""

    def call_it(*arguments: str, timeout: float = 240) -> Answer:
        return theodolite(*arguments, home=home, cwd=tmp_path, timeout=timeout)

    return call_it


@pytest.fixture
def call_here(tmp_path: Path) -> Callable[..., Answer]:
    """Call `theodolite` in an empty folder, in this process; commands that run a flow need `prefect_here` too."""

    def call_it(*arguments: str) -> Answer:
        return theodolite_here(*arguments, cwd=tmp_path)

    return call_it


@pytest.fixture
def call_flow(prefect_here: None, call_here: Callable[..., Answer]) -> Callable[..., Answer]:
    """Call a command that runs a flow, in this process and on this worker's Prefect server."""
    return call_here


@pytest.fixture(scope="session")
def prefect_here(home: Path) -> Iterator[None]:
    """Flows can run in this process: the API is the one that a command starts beside itself."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("PREFECT_")]:
            patch.delenv(name)
        patch.setenv("PREFECT_HOME", str(home))
        engine.set_environment(verbose=False)
        engine.start()
        engine.connect()
        with engine.orchestration():
            yield
