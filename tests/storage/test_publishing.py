"""Processes that are killed, and processes that want the same part: the same bytes as one that nothing disturbed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.filesystem import open_runs
from storage.layout import Layout
from storage.manifest import Manifest
from tests.changes import WAITING
from tests.storage.stores import tree
from tests.storage.worker import KEY, LAYOUT, write_table_part

ROOT = Path(__file__).resolve().parents[2]
PARTS = {"tables": 4, "tensors": 3}
KILLS = 8


class Worker:
    """Processes that write parts (see `worker.py`)."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._input, self._output = process.stdin, process.stdout

    def start(self, where: Path, kind: str, processes: int = 1, stop: int = 0) -> int:
        """Start processes of the same work, which stop before their change of that number; the id of the first."""
        self._early: list[str] = []
        self._input.write(f"{where} {kind} {PARTS[kind]} {processes} {stop}\n")
        self._input.flush()
        while not (line := self._output.readline().strip()).startswith("start "):
            self._early.append(line)  # said by a process before the worker's own line
        return int(line.removeprefix("start "))

    def line(self) -> str:
        return self._early.pop(0) if self._early else self._output.readline().strip()

    def end(self) -> tuple[list[str], int]:
        """What the process said until it ended, and its exit code."""
        said = []
        while not (line := self.line()).startswith("end "):
            assert line, "the worker itself died"
            said.append(line)
        return said, int(line.removeprefix("end "))

    def run(self, where: Path, kind: str) -> list[str]:
        self.start(where, kind)
        said, code = self.end()
        assert code == 0
        return said


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    command = [sys.executable, "-m", "tests.storage.worker"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Worker(process)


def wrote(said: list[str]) -> list[str]:
    return [line for line in said if line.startswith("wrote ")]


def records(kind: str) -> list[str]:
    names = [f"{i:05d}" for i in range(PARTS[kind])]
    return [LAYOUT.part_record("stage", KEY, n) if kind == "tables" else LAYOUT.shard_record(int(n)) for n in names]


@pytest.mark.parametrize("kind", PARTS)
def test_a_process_killed_at_any_moment_and_run_again_leaves_the_same_bytes(
    worker: Worker, tmp_path: Path, kind: str
) -> None:
    """Killed before one of the changes that it makes to the folder, drawn from each eighth of them."""
    made = int(worker.run(tmp_path / "undisturbed", kind)[-1].removeprefix("made "))
    want = tree(tmp_path / "undisturbed")
    generator = random.Random(kind)
    interrupted = 0
    for attempt in range(KILLS):
        where = tmp_path / f"killed-{attempt}"
        process = worker.start(where, kind, stop=1 + int(made * (attempt + generator.random()) / KILLS))
        while (line := worker.line()) != WAITING:
            assert line.startswith("wrote "), line
        os.kill(process, signal.SIGKILL)
        assert worker.end() == ([], -signal.SIGKILL)
        manifest = Manifest(open_runs(str(where), create=True), Layout(LAYOUT.capture))
        done = [record for record in records(kind) if manifest.published(record) is not None]
        assert [problem for record in done for problem in manifest.verify(record)] == []
        interrupted += 0 < len(done) < PARTS[kind]
        assert len(wrote(worker.run(where, kind))) == PARTS[kind] - len(done)
        assert tree(where) == want
    assert interrupted >= KILLS // 2, "few kills fell between the first part and the last"


def test_two_processes_that_want_the_same_parts_write_each_once(worker: Worker, tmp_path: Path) -> None:
    worker.run(tmp_path / "alone", "tables")
    where = tmp_path / "together"
    worker.start(where, "tables", processes=2)
    said, code = worker.end()
    assert code == 0
    assert sorted(wrote(said)) == [f"wrote {i}" for i in range(PARTS["tables"])]
    assert tree(where) == tree(tmp_path / "alone")


def test_a_process_waits_for_the_one_that_holds_the_lock_and_then_finds_the_work_done(
    worker: Worker, tmp_path: Path
) -> None:
    where = tmp_path / "runs"
    fs = open_runs(str(where), create=True)
    with fs.lock(LAYOUT.lock("tables-0")):
        worker.start(where, "tables")
        assert worker.line() == "waited"
        write_table_part(fs, 0)
    said, code = worker.end()
    assert (wrote(said), code) == ([f"wrote {i}" for i in range(1, PARTS["tables"])], 0)
