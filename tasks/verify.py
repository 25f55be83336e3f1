"""Is what lies in a run folder what the manifest says? Every byte of every published part is read again."""

from __future__ import annotations

from collections.abc import Iterator

from storage.manifest import FileRecord
from tasks.prepared import Prepared
from tasks.progress import Progress, emit


def verify_capture(runs: str, capture: str) -> tuple[int, list[str]]:
    """Number of parts reread, and the problems found, each naming its file; none means all is as it was written."""
    prepared = Prepared.open(runs, capture)
    problems = list(_windows_problem(prepared))
    records = list(_records(prepared))
    for path in records:
        problems += prepared.manifest.verify(path)
        emit(Progress("verify", 1, "parts"))
    return len(records), problems


def _records(prepared: Prepared) -> Iterator[str]:
    """Paths of all part records that were written: shards of the capture, then parts of its stages."""
    fs, layout = prepared.fs, prepared.layout
    for path in (layout.model_record, *map(layout.shard_record, range(prepared.n_shards))):
        if fs.exists(path):
            yield path
    for path in fs.list(layout.stage_records_root):
        if not path.endswith("/stage.json"):
            yield path


def _windows_problem(prepared: Prepared) -> Iterator[str]:
    path, expected = prepared.layout.windows, FileRecord(**prepared.record["windows"])
    if not prepared.fs.exists(path):
        yield f"{path}: missing"
    elif FileRecord.of(prepared.fs.read_bytes(path)) != expected:
        yield f"{path}: its content is not what the manifest says"
