"""What a part under way has done already, so that an interrupted one goes on where it was.

A shard of a stage that reads the store takes seconds, and begins anew. A shard of a replay may take an hour: its pieces
are published one by one, by the same rule as parts, and let go when the stage is done.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from storage.arrays import read_arrays, write_arrays
from storage.errors import DamagedPart
from storage.layout import under
from storage.manifest import PartRecord
from tasks.capture.folder import CaptureFolder

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Checkpoints:
    """The pieces of one part, for the process that holds the part's lock."""

    prepared: CaptureFolder
    stage: str
    key: str
    part: str
    staging: str
    """The part's own staging folder."""

    def once(self, name: str, compute: Callable[[], Arrays]) -> Arrays:
        """The arrays of the piece `name`: of an earlier try; else, or where those are damaged, computed and kept."""
        fs, layout, manifest = self.prepared.fs, self.prepared.layout, self.prepared.manifest
        record_path = layout.checkpoint_record(self.stage, self.key, self.part, name)
        path = layout.checkpoint(self.stage, self.key, self.part, name)
        record = manifest.published(record_path)
        if record is not None:
            with suppress(DamagedPart):
                return read_arrays(fs, path, record.files[path])
        arrays = compute()
        staged = under(self.staging, f"checkpoint-{name}.safetensors")
        record = PartRecord({path: write_arrays(fs, staged, arrays)}, {}, {})
        manifest.publish(record_path, record, [(staged, path)])
        return arrays


def forget(prepared: CaptureFolder, stage: str, key: str) -> None:
    """Remove what a stage's parts kept on their way: all are published."""
    prepared.fs.remove(prepared.layout.checkpoint_records_root(stage, key))
    prepared.fs.remove(prepared.layout.checkpoints_root(stage, key))
