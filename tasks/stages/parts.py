"""The parts of a stage run: their rows, the arrays beside them, their progress, and how each is published once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial as bind
from typing import TYPE_CHECKING, Any

from storage.arrays import read_arrays, write_arrays
from storage.layout import Layout
from storage.tables import PartWriter
from tasks.capture.folder import CaptureFolder
from tasks.progress import Progress, emit, waits
from tasks.run_record import StageRun
from tasks.shard import PartResult, publish_once
from tasks.stages.contract import DOCUMENTS, Advance, Stage

if TYPE_CHECKING:
    from storage.filesystem import Filesystem
    from tasks.stages.contract import Partial


class PartRows:
    """The rows of one part: a Parquet file per table, opened when its first rows come."""

    def __init__(self, fs: Filesystem, staging: str, stage: Stage, capture: str, key: str) -> None:
        specs = {spec.name: spec for spec in stage.tables}
        constants = {"capture": capture, "stage_key": key}
        self._open = lambda table: PartWriter(fs, f"{staging}/{table}.parquet", specs[table], constants)
        self._writers: dict[str, PartWriter] = {}

    def add(self, table: str, columns: Mapping[str, Any]) -> None:
        """Append rows to a table of the stage."""
        if table not in self._writers:
            self._writers[table] = self._open(table)
        self._writers[table].add(columns)

    def close(self, work: PartResult, layout: Layout, key: str, part: str) -> None:
        """Close every file and add it to the part's work."""
        for name, writer in self._writers.items():
            record, rows = writer.close()
            work.add_file(writer.path, layout.table_part(name, key, part), record)
            work.rows[name] = rows


def progress_of(stage: Stage, kind: str, n_layers: int) -> Advance:
    """How a step reports its progress. Documents count once all layers are done, the stage's own units at once;
    a survey, whose `kind` is not the stage's name, always counts documents."""
    by_document = stage.count_units is None or kind != stage.name
    per_unit, unit = (n_layers, DOCUMENTS) if by_document else (1, stage.unit)

    def advance(done: float, restored: bool = False) -> None:
        emit(Progress(kind, done / per_unit, unit, restored))

    return advance


def publish_part(prepared: CaptureFolder, run: StageRun, part: str, compute: Callable[[str], PartResult]) -> bool:
    """Do a part of the stage unless it is done; True if it was done here and now."""
    layout = prepared.layout
    name = f"{run.stage}-{run.key[:16]}-{part}"
    record, wait = layout.part_record(run.stage, run.key, part), bind(waits, run.stage, f"part {part}")
    return publish_once(prepared.fs, layout, record, name, compute, wait)


def keep_partial(
    prepared: CaptureFolder, run: StageRun, part: str, partial: Partial, staging: str, work: PartResult
) -> None:
    """Add the arrays that a part leaves to its work."""
    staged = f"{staging}/partial.safetensors"
    path = prepared.layout.partial(run.stage, run.key, part)
    work.add_file(staged, path, write_arrays(prepared.fs, staged, partial))


def read_partial(prepared: CaptureFolder, run: StageRun, part: str) -> Partial:
    """The arrays that a part left, checked against its record: damaged ones must not reach the totals."""
    layout, path = prepared.layout, prepared.layout.partial(run.stage, run.key, part)
    record = prepared.manifest.read_part(layout.part_record(run.stage, run.key, part))
    return read_arrays(prepared.fs, path, record.files[path])
