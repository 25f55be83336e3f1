"""A prepared capture: where it lies and what its record says. What every task opens first."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage.filesystem import Filesystem, open_runs
from storage.layout import Layout
from storage.manifest import Manifest, require

_FIELDS = (
    *("capture", "key", "ingredients", "settings", "model_config", "lengths"),
    *("shards", "left_out", "created_at", "versions", "windows"),
)


@dataclass(frozen=True)
class CaptureFolder:
    """A capture that was prepared: where it lies and what its record says."""

    fs: Filesystem
    layout: Layout
    record: dict[str, Any]

    @classmethod
    def open(cls, runs: str, capture: str) -> CaptureFolder:
        fs, layout = open_runs(runs), Layout(capture)
        record = require(Manifest(fs, layout).read_capture(), _FIELDS, fs.absolute(layout.capture_record))
        return cls(fs, layout, record)

    @property
    def settings(self) -> dict[str, Any]:
        return self.record["settings"]

    @property
    def model(self) -> str:
        """The captured model by the name under which it is found from any folder: one that was captured from a path
        must not be looked for on the hub because nothing lies there any more, or because this is another folder. A
        worker that has it elsewhere finds it under the name that was given."""
        at, named = self.record.get("model_at"), str(self.record["settings"]["model"])
        moved = at is not None and not Path(at).exists() and Path(named).expanduser().exists()
        return named if at is None or moved else str(at)

    @property
    def n_shards(self) -> int:
        return len(self.record["shards"])

    @property
    def manifest(self) -> Manifest:
        return Manifest(self.fs, self.layout)

    def shards_left(self) -> list[int]:
        """The shards that are not published yet; the first too while the model's part of the store is not."""
        published = self.manifest.published
        left = [shard for shard in range(self.n_shards) if published(self.layout.shard_record(shard)) is None]
        return left if published(self.layout.model_record) is not None else sorted({0, *left})
