"""Is what lies in a run folder what the manifest says? Every byte of every published part is read again.

One damaged record stops nothing: it is a problem like any other, and everything that can be read is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from storage.errors import AGAIN, StoreError
from storage.filesystem import Filesystem, open_runs
from storage.layout import FINAL, KEY_DIGITS, Layout, shard_part, under
from storage.manifest import FileRecord, Manifest
from tasks.capture.documents import record_of
from tasks.capture.finish import CAPTURE
from tasks.capture.folder import CaptureFolder
from tasks.progress import Progress, emit

_MISSING = "missing"
_DAMAGED = f"Delete this file and {AGAIN}."
_LOST = f"{AGAIN.capitalize()}: it makes what is missing."


def verify_capture(runs: str, capture: str) -> tuple[int, list[str]]:
    """Number of parts reread, and the problems found, each naming its file and what to do; none: all is as written."""
    fs, layout = open_runs(runs), Layout(capture)
    expected = _expected(fs, layout)
    problems = expected.problems + [f"{path}: {_MISSING}. {_LOST}" for path in expected.lost]
    for path in expected.records:
        problems += _reread(Manifest(fs, layout), path)
        emit(Progress("verify", 1, "parts"))
    return len(expected.records), problems


def count_records(runs: str, capture: str) -> int:
    """How many parts `verify_capture` reads again."""
    return len(_expected(open_runs(runs), Layout(capture)).records)


@dataclass
class _Expected:
    """The part records that lie there, those that should and do not, and what is wrong with records of other kinds."""

    records: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def add(self, fs: Filesystem, path: str, *, needed: bool) -> None:
        """A part record, if it lies there; if not, it is lost where it is needed."""
        if fs.exists(path):
            self.records.append(path)
        elif needed:
            self.lost.append(path)


def _expected(fs: Filesystem, layout: Layout) -> _Expected:
    """What the capture's record and those of its stages call for: every part of what is done, else what lies there."""
    found, n_shards, done = _Expected(), 0, False
    try:
        folder = CaptureFolder.open(fs.where, layout.capture)
        n_shards, done = folder.n_shards, _is_done(fs, layout, CAPTURE, folder.record["key"])
        found.problems += _windows_problem(folder)
    except StoreError as error:
        found.problems.append(_unreadable(layout.capture_record, error))
    found.add(fs, layout.model_record, needed=done)
    shards = [layout.shard_record(shard) for shard in range(n_shards)]
    for path in [*shards, *(p for p in fs.list(layout.shard_records_root) if p not in shards)]:
        found.add(fs, path, needed=done)
    for stage in fs.children(layout.stage_records_root):
        for key in fs.children(under(layout.stage_records_root, stage)):
            _add_stage(fs, layout, stage, key, n_shards, found)
    return found


def _add_stage(fs: Filesystem, layout: Layout, stage: str, key: str, n_shards: int, found: _Expected) -> None:
    record = layout.stage_record(stage, key)
    try:
        Manifest(fs, layout).read_stage(stage, key)
    except StoreError as error:
        found.problems.append(_unreadable(record, error) if fs.exists(record) else f"{record}: {_MISSING}. {_LOST}")
    done = _is_done(fs, layout, stage, key)
    shards = () if stage == CAPTURE else map(shard_part, range(n_shards))  # the capture's own shards lie elsewhere
    parts = [layout.part_record(stage, key, part) for part in (*shards, FINAL)]
    others = [path for path in fs.list(layout.stage_folder(stage, key)) if path not in (record, *parts)]
    for path in [*parts, *others]:
        found.add(fs, path, needed=done)


def _is_done(fs: Filesystem, layout: Layout, stage: str, key: str) -> bool:
    """Whether the stage's record says so; its final part stands in for a record that is lost or damaged."""
    try:
        return bool(Manifest(fs, layout).read_stage(stage, key[:KEY_DIGITS])["status"] == "done")
    except StoreError:
        return fs.exists(layout.part_record(stage, key, FINAL))


def _reread(manifest: Manifest, path: str) -> list[str]:
    try:
        manifest.read_part(path)
        problems = manifest.verify(path)
    except StoreError as error:
        return [_unreadable(path, error)]
    except (OSError, ValueError) as error:  # a file closed to the user, a record that names no path
        return [f"{path}: cannot be read again: {error}. {_DAMAGED}"]
    return [f"{problem}. {_LOST if problem.endswith(_MISSING) else _DAMAGED}" for problem in problems]


def _unreadable(path: str, error: StoreError) -> str:
    return f"{path}: {error}"  # its remedy says what to do


def _windows_problem(folder: CaptureFolder) -> Iterator[str]:
    path = folder.layout.windows
    if not folder.fs.exists(path):
        yield f"{path}: {_MISSING}. {_LOST}"
        return
    try:
        expected = FileRecord(**folder.record["windows"])
    except TypeError:
        where = folder.layout.capture_record
        yield f"{where}: expected the size and checksum of {path}, got {folder.record['windows']!r}. {_DAMAGED}"
        return
    if record_of(folder.fs, path) != expected:
        yield f"{path}: its content is not what the manifest says. {_DAMAGED}"
