"""The life of a part: done once, by one process, whatever is killed in between."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from storage.filesystem import Filesystem, open_runs
from storage.layout import Layout
from storage.manifest import FileRecord, Manifest
from tasks.shard import PartResult, publish_once

LAYOUT = Layout("capture")
RECORD = LAYOUT.shard_record(0)
TARGET = LAYOUT.shard(0)


@pytest.fixture
def fs(tmp_path: Path) -> Filesystem:
    return open_runs(str(tmp_path), create=True)


def work_of(fs: Filesystem, calls: list[str], content: bytes = b"numbers"):
    def compute(staging: str) -> PartResult:
        calls.append(staging)
        fs.write_bytes(f"{staging}/shard/array", content)
        work = PartResult(rows={"rows": 3}, quality={"nan": 1})
        work.add_folder(f"{staging}/shard", TARGET, {"array": FileRecord.of(content)})
        return work

    return compute


def test_done_once_and_found_done(fs: Filesystem) -> None:
    calls: list[str] = []
    assert publish_once(fs, LAYOUT, RECORD, "shard-0", work_of(fs, calls))
    assert not publish_once(fs, LAYOUT, RECORD, "shard-0", work_of(fs, calls))
    assert len(calls) == 1
    record = Manifest(fs, LAYOUT).published(RECORD)
    assert record is not None
    assert (record.rows, record.quality) == ({"rows": 3}, {"nan": 1})
    assert fs.read_bytes(f"{TARGET}/array") == b"numbers"
    assert fs.list(LAYOUT.staging_root) == []


@pytest.mark.parametrize("killed_at", ["in the work", "before the record", "before the rename"])
def test_killed_anywhere_is_done_again_with_the_same_bytes(
    fs: Filesystem, monkeypatch: pytest.MonkeyPatch, killed_at: str
) -> None:
    class Killed(BaseException):
        pass

    def die(*_: object) -> None:
        raise Killed

    calls: list[str] = []
    compute = work_of(fs, calls)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        if killed_at == "in the work":
            compute = lambda staging: die()  # noqa: E731
        elif killed_at == "before the record":
            patch.setattr(Manifest, "publish", die)
        else:
            patch.setattr(type(fs), "rename", die)
        publish_once(fs, LAYOUT, RECORD, "shard-0", compute)
    assert Manifest(fs, LAYOUT).published(RECORD) is None
    assert publish_once(fs, LAYOUT, RECORD, "shard-0", work_of(fs, calls))
    assert fs.read_bytes(f"{TARGET}/array") == b"numbers"


def test_leftovers_in_staging_do_not_get_published(fs: Filesystem) -> None:
    fs.write_bytes(f"{LAYOUT.staging('shard-0')}/shard/stale", b"old")
    publish_once(fs, LAYOUT, RECORD, "shard-0", work_of(fs, []))
    assert fs.list(TARGET) == [f"{TARGET}/array"]


def test_damaged_part_is_replaced(fs: Filesystem) -> None:
    publish_once(fs, LAYOUT, RECORD, "shard-0", work_of(fs, []))
    fs.write_bytes(f"{TARGET}/array", b"cut")
    assert publish_once(fs, LAYOUT, RECORD, "shard-0", work_of(fs, []))
    assert fs.read_bytes(f"{TARGET}/array") == b"numbers"


def test_two_at_once_work_once(fs: Filesystem) -> None:
    calls: list[str] = []
    waited: list[int] = []
    inside, release = threading.Event(), threading.Event()

    def slow(staging: str) -> PartResult:
        inside.set()
        release.wait(10)
        return work_of(fs, calls)(staging)

    results: list[bool] = []
    first = threading.Thread(target=lambda: results.append(publish_once(fs, LAYOUT, RECORD, "s", slow)))
    first.start()
    inside.wait(10)
    second = threading.Thread(
        target=lambda: results.append(
            publish_once(fs, LAYOUT, RECORD, "s", work_of(fs, calls), on_wait=lambda: (waited.append(1), release.set()))
        )
    )
    second.start()
    first.join(20)
    second.join(20)
    assert sorted(results) == [False, True]
    assert (len(calls), len(waited)) == (1, 1)
