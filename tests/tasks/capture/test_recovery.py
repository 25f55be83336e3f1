"""Killed anywhere and run again: the same bytes as an undisturbed run. Two runs at once: nothing written twice."""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.changes import WAITING
from tests.conftest import ROOT

TIMED = ("capture.json", "stage.json")
"""Records that say when; shard records carry how long. Everything else must be the same bytes."""

CHANGES = 60
"""A run is killed before one of so many changes that it makes; eight of these are less than a whole run makes."""


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("text") / "text.txt"
    file.write_text("The assert statement is a convenient way to insert debugging assertions. " * 40)
    return file


def start(runs: Path, text: Path, *change: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.tasks.capture.worker", str(runs), str(text), *map(str, change)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "ready", process.communicate()[1]
    return process


def finish(process: subprocess.Popen[str]) -> None:
    out, error = process.communicate(timeout=240)
    assert (process.returncode, out.strip()) == (0, "done"), error


def contents(runs: Path) -> dict[str, str]:
    """Digest of every file that a run leaves, less what says when and how long."""
    found = {}
    for file in sorted(p for p in runs.rglob("*") if p.is_file()):
        name = file.relative_to(runs).as_posix()
        if "/locks/" in name or file.name in TIMED or "/tables/stages/" in name or "/tables/captures/" in name:
            continue
        data = file.read_bytes()
        if "/manifest/" in name and name.endswith(".json"):
            record = json.loads(data)
            record.get("quality", {}).pop("milliseconds", None)
            record["files"] = {k: v for k, v in record.get("files", {}).items() if "/tables/captures/" not in k}
            data = json.dumps(record, sort_keys=True).encode()
        found[name] = hashlib.sha256(data).hexdigest()
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, text: Path) -> dict[str, str]:
    runs = tmp_path_factory.mktemp("undisturbed")
    finish(start(runs, text))
    found = contents(runs)
    assert len(found) > 50
    return found


@pytest.mark.slow
def test_killed_at_any_moment_ends_with_the_same_bytes(tmp_path: Path, text: Path, undisturbed: dict[str, str]) -> None:
    """Killed before a change to the folder that was drawn: in the middle of a file, before a rename, between shards."""
    drawn = random.Random(7)
    for _ in range(8):
        process = start(tmp_path, text, drawn.randint(1, CHANGES))
        assert process.stdout is not None
        assert process.stdout.readline().strip() == WAITING, process.communicate()[1]
        process.kill()
        process.communicate()
    finish(start(tmp_path, text))
    assert contents(tmp_path) == undisturbed


@pytest.mark.slow
def test_two_runs_of_the_same_key_write_once(tmp_path: Path, text: Path, undisturbed: dict[str, str]) -> None:
    both = [start(tmp_path, text), start(tmp_path, text)]
    for process in both:
        finish(process)
    assert contents(tmp_path) == undisturbed


@pytest.mark.slow
def test_a_second_run_touches_no_part(tmp_path: Path, text: Path) -> None:
    finish(start(tmp_path, text))
    parts = [p for p in tmp_path.rglob("*") if p.is_file() and ("/shards/" in str(p) or "/part-" in str(p))]
    before = {p: p.stat().st_mtime_ns for p in parts}
    finish(start(tmp_path, text))
    assert {p: p.stat().st_mtime_ns for p in parts} == before
