"""Made-up captures published through the same writers and manifest as real ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa

from storage.filesystem import Filesystem
from storage.keys import digest
from storage.layout import FINAL, Layout, shard_part
from storage.manifest import FileRecord, Manifest, PartRecord
from storage.tables import PartWriter, write_table
from tasks.stages.registry import stages, tables
from tests.sql.made_up import DOCS, LAYERS, PER_LAYER, Columns, capture_columns, whole_columns
from tests.sql.made_up_choices import choices_columns
from tests.sql.made_up_multiscale import coherency_columns, pod_columns, scalogram_columns
from tests.sql.made_up_pairs import pair_columns
from tests.sql.made_up_perturbation import (
    displacement_columns,
    perturbation_columns,
    propagation_columns,
    repair_columns,
)
from tests.sql.made_up_probes import probes_columns
from tests.sql.made_up_replays import ablation_columns, masking_columns, pruning_columns, sink_columns
from tests.sql.made_up_selection import SELECTION_PER_LAYER, taxonomy_columns

Change = Callable[[Columns], None]
SHARDS: dict[str, Mapping[str, Callable[[int, int], Columns]]] = {
    "contributions": PER_LAYER,
    "selection": SELECTION_PER_LAYER,
}
"""Stages with rows per document and layer: what makes each table's."""
FINALS: dict[str, Callable[[], dict[str, Columns]]] = {
    "contributions": whole_columns,
    "taxonomy": taxonomy_columns,
    "choices": choices_columns,
    "scalogram": scalogram_columns,
    "pod": pod_columns,
    "coherency": coherency_columns,
    "probes": probes_columns,
    "minimal_pairs": pair_columns,
}
"""Stages with rows over the whole capture."""
REPLAYS: dict[str, Mapping[str, Callable[[range, Columns], Columns]]] = {
    "masking": {"masking": masking_columns},
    "sink": {"sink_removal": sink_columns},
    "pruning": {"pruning": pruning_columns},
    "head_ablation": {"head_ablation": ablation_columns},
    "perturbation": {"perturbation": perturbation_columns, "displacement": displacement_columns},
    "propagation": {"propagation": propagation_columns},
    "repair": {"repair": repair_columns},
}
"""Of each stage that runs the model again its tables, and what fills each for a range of documents."""


class MadeUp:
    """A capture `name` in `fs`, whose tables `changes` may alter before they are written."""

    def __init__(
        self, fs: Filesystem, name: str, *, changes: Mapping[str, Change] | None = None, store_dtype: str = "float32"
    ) -> None:
        self.fs, self.name, self.store_dtype = fs, name, store_dtype
        self.specs = tables()
        self.version = 1
        self.layout = Layout(name)
        self.manifest = Manifest(fs, self.layout)
        self.changes = changes or {}

    def publish(self) -> None:
        """The capture's tables and a finished run of every stage with two shards."""
        self.capture()
        self.contributions()
        for stage in dict.fromkeys((*SHARDS, *FINALS)):
            if stage != "contributions":
                self.stage(stage)
        self.replays()

    def stage(self, stage: str) -> None:
        """A finished run of a stage."""
        for shard in (0, 1) if stage in SHARDS else ():
            self.part(stage, 0, shard_part(shard), self.shard_columns(shard, stage))
        if stage in FINALS:
            self.part(stage, 0, FINAL, FINALS[stage]())
        self.run(stage, 0)

    def capture(self) -> None:
        self.manifest.write_capture({"capture": self.name, "key": self.key("capture", 0)})
        self.part("capture", 0, FINAL, capture_columns(self.name, self.store_dtype))
        self.run("capture", 0)

    def contributions(self, variant: int = 0, *, shards: tuple[int, ...] = (0, 1), requested: int = 0) -> None:
        """A run with parameters `variant`: the shards given of the two that there are."""
        for shard in shards:
            self.part("contributions", variant, shard_part(shard), self.shard_columns(shard))
        if len(shards) == 2:
            self.part("contributions", variant, FINAL, whole_columns())
        self.run("contributions", variant, "done" if len(shards) == 2 else "partial", requested, len(shards))

    def replays(self) -> None:
        """Runs of the stages that run the model again."""
        for stage in REPLAYS:
            for shard in (0, 1):
                self.replay_part(stage, shard)
            self.run(stage, 0)

    def replay_part(self, stage: str, shard: int) -> None:
        documents = capture_columns(self.name, self.store_dtype)["documents"]
        docs = range(shard * DOCS // 2, (shard + 1) * DOCS // 2)
        made = {table: make(docs, documents) for table, make in REPLAYS[stage].items()}
        self.part(stage, 0, shard_part(shard), made)

    def republish(self) -> None:
        """Again those parts of `publish` that hold a table to be changed, or the captures' dtype."""
        self.part("capture", 0, FINAL, capture_columns(self.name, self.store_dtype))
        for stage, makers in SHARDS.items():
            if set(self.changes) & set(makers):
                self.part(stage, 0, shard_part(0), self.shard_columns(0, stage))
        for stage, make in FINALS.items():
            if set(self.changes) & {table.name for table in stages()[stage].tables}:
                self.part(stage, 0, FINAL, make())
        for stage, makers in REPLAYS.items():
            if set(self.changes) & set(makers):
                self.replay_part(stage, 0)

    def shard_columns(self, shard: int, stage: str = "contributions") -> dict[str, Columns]:
        found: dict[str, Columns] = {}
        for table, make in SHARDS[stage].items():
            pieces = []
            for doc in range(shard * DOCS // 2, (shard + 1) * DOCS // 2):
                for layer in range(LAYERS):
                    piece = make(doc, layer)
                    n = len(piece["head"])
                    pieces.append({"doc": np.full(n, doc), "layer": np.full(n, layer), **piece})
            found[table] = {name: np.concatenate([p[name] for p in pieces]) for name in pieces[0]}
        return found

    def key(self, stage: str, variant: int) -> str:
        return digest({"capture": self.name, "stage": stage, "variant": variant})

    def part(self, stage: str, variant: int, part: str, columns: Mapping[str, Columns]) -> None:
        """Publish one part: a file per table."""
        key, files, rows, moves = self.key(stage, variant), {}, {}, []
        for table, given in columns.items():
            table_columns = dict(given)
            if table in self.changes and part in (FINAL, shard_part(0)):
                self.changes[table](table_columns)
            staged, path = self.layout.staging(f"{table}.parquet"), self.layout.table_part(table, key, part)
            files[path], rows[table] = self._write(staged, table, table_columns, key)
            moves.append((staged, path))
        self.manifest.publish(self.layout.part_record(stage, key, part), PartRecord(files, rows), moves)

    def _write(self, path: str, table: str, columns: Columns, key: str) -> tuple[FileRecord, int]:
        with PartWriter(self.fs, path, self.specs[table], {"capture": self.name, "stage_key": key}) as writer:
            writer.add(
                {
                    n: c.astype(np.float32) if c.dtype == np.float64 and _is_real(table, n) else c
                    for n, c in columns.items()
                }
            )
        return writer.close()

    def run(self, stage: str, variant: int, status: str = "done", requested: int = 0, shards: int = 2) -> None:
        """The run's record and its row of the table of stages."""
        key = self.key(stage, variant)
        asked = f"2026-01-01T00:00:{requested:02d}.000+00:00"
        record = {"stage": stage, "key": key, "version": self.version, "status": status, "requested_at": asked}
        self.manifest.write_stage(stage, key, record)
        row = {**record, "capture": self.name, "stage_key": key, "params": json.dumps({"variant": variant})}
        row |= {
            "shards_done": shards,
            "shards_total": 2,
            "rows": 0,
            "started_at": asked,
            "finished_at": asked,
            "quality": "{}",
        }
        schema = tables()["stages"].schema
        write_table(
            self.fs,
            self.layout.stages_table(stage, key),
            tables()["stages"],
            pa.Table.from_pylist([row], schema=schema),
        )


def _is_real(table: str, column: str) -> bool:
    return tables()[table].schema.field(column).type == pa.float32()
