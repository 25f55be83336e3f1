"""What `verify` says of a run folder: every problem names its file and what to do, and none hides another."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.filesystem import Filesystem, open_runs
from storage.layout import FINAL, Layout, shard_part
from storage.manifest import FileRecord, Manifest, PartRecord
from tasks.capture.finish import CAPTURE
from tasks.capture.folder import CaptureFolder
from tasks.capture.plan import prepare_capture
from tasks.capture.settings import CaptureSettings
from tasks.capture.verify import count_records, verify_capture

DELETE = "Delete this file and run the same command again."
AGAIN = "Run the same command again: it makes what is missing."
STAGE, KEY = "contributions", "a" * 64


class Made:
    """A prepared capture of two shards whose parts hold made-up bytes, and a stage over it; all done."""

    def __init__(self, runs: Path) -> None:
        self.runs = str(runs / "runs")
        text = runs / "text.txt"
        text.write_text("Assert statements are a convenient way to insert debugging assertions. " * 2)
        settings = CaptureSettings("sample", (str(text),), window=64, shard_tokens=80)
        self.capture = prepare_capture(settings, self.runs)
        self.fs: Filesystem = open_runs(self.runs)
        self.layout = Layout(self.capture)
        self.manifest = Manifest(self.fs, self.layout)
        prepared = CaptureFolder.open(self.runs, self.capture)
        self.n_shards, self.key = prepared.n_shards, prepared.record["key"]
        shards = [shard_part(i) for i in range(self.n_shards)]
        records = [self.layout.model_record, *map(self.layout.shard_record, range(self.n_shards))]
        records += [self.layout.part_record(CAPTURE, self.key, FINAL)]
        records += [self.layout.part_record(STAGE, KEY, part) for part in (*shards, FINAL)]
        for record in records:
            self.part(record)
        self.state(CAPTURE, self.key)
        self.state(STAGE, KEY)

    def part(self, record: str) -> None:
        data, path = record.encode(), f"{record}.data"
        self.fs.write_bytes(path, data)
        self.manifest.publish(record, PartRecord({path: FileRecord.of(data)}), [])
        self.fs.rename(path, path.replace("/manifest/", "/data/"))
        moved = path.replace("/manifest/", "/data/")
        self.manifest.publish(record, PartRecord({moved: FileRecord.of(data)}), [])

    def state(self, stage: str, key: str, status: str = "done") -> None:
        record = {"stage": stage, "key": key, "version": 1, "status": status, "requested_at": "2026"}
        self.manifest.write_stage(stage, key, record)

    def problems(self) -> list[str]:
        parts, problems = verify_capture(self.runs, self.capture)
        assert parts == count_records(self.runs, self.capture)
        return problems


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path)


def test_whole_folder_has_no_problem(made: Made) -> None:
    assert made.n_shards == 2
    assert verify_capture(made.runs, made.capture) == (7, [])


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"format": 1}'])
@pytest.mark.parametrize("name", ["capture", "stage", "capture stage", "shard", "model", "part"])
def test_a_damaged_record_is_told_and_hides_nothing(made: Made, name: str, content: bytes) -> None:
    layout = made.layout
    damaged = {
        "capture": layout.capture_record,
        "stage": layout.stage_record(STAGE, KEY),
        "capture stage": layout.stage_record(CAPTURE, made.key),
        "shard": layout.shard_record(0),
        "model": layout.model_record,
        "part": layout.part_record(STAGE, KEY, FINAL),
    }[name]
    other = f"{layout.part_record(STAGE, KEY, shard_part(1))}.data".replace("/manifest/", "/data/")
    made.fs.write_bytes(damaged, content)
    made.fs.write_bytes(other, b"changed")
    problems = sorted(made.problems(), key=lambda problem: problem.startswith(other))
    assert len(problems) == 2
    assert problems[0].startswith(f"{damaged}: expected ")
    assert problems[0].endswith("if it is damaged, delete this file and run the same command again.")
    assert problems[1].startswith(f"{other}: size 7 where the record says ")
    assert problems[1].endswith(DELETE)


def test_records_of_what_is_done_that_are_gone_are_told(made: Made) -> None:
    layout = made.layout
    gone = [
        layout.model_record,
        layout.shard_record(1),
        layout.part_record(STAGE, KEY, shard_part(0)),
        layout.part_record(STAGE, KEY, FINAL),
    ]
    for path in gone:
        made.fs.remove(path)
    assert sorted(made.problems()) == sorted(f"{path}: missing. {AGAIN}" for path in gone)


def test_what_is_not_done_yet_is_not_missing(made: Made) -> None:
    for stage, key in ((CAPTURE, made.key), (STAGE, KEY)):
        made.state(stage, key, "partial")
        made.fs.remove(made.layout.part_record(stage, key, FINAL))
    made.fs.remove(made.layout.shard_record(1))
    made.fs.remove(made.layout.part_record(STAGE, KEY, shard_part(1)))
    assert made.problems() == []


def test_the_record_of_a_stage_that_is_gone_is_told(made: Made) -> None:
    path = made.layout.stage_record(STAGE, KEY)
    made.fs.remove(path)
    assert made.problems() == [f"{path}: missing. {AGAIN}"]


def test_documents_that_are_gone_or_changed_are_told(made: Made) -> None:
    path = made.layout.windows
    made.fs.write_bytes(path, b"x" * made.fs.size(path))
    assert made.problems() == [f"{path}: its content is not what the manifest says. {DELETE}"]
    made.fs.remove(path)
    assert made.problems() == [f"{path}: missing. {AGAIN}"]


def test_a_newer_format_is_not_to_be_deleted(made: Made) -> None:
    path = made.layout.shard_record(0)
    made.fs.write_bytes(path, b'{"format": 99}')
    (problem,) = made.problems()
    assert problem.startswith(f"{path}: expected a store of format 1 or older, got format 99")
    assert problem.endswith("A newer version of Theodolite wrote it: upgrade, or use another folder.")
