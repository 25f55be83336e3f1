"""What the manifest and the table of stages say about one run of one stage."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self

import pyarrow as pa

from storage.errors import MissingPart
from storage.layout import FINAL, shard_part
from storage.manifest import require
from storage.tables import write_table
from tasks.capture.folder import CaptureFolder
from tasks.capture.tables import STAGES


@dataclass(frozen=True)
class StageRun:
    """One stage with one set of parameters over one capture."""

    stage: str
    key: str
    version: int
    parameters: dict[str, Any]
    seed: int

    @classmethod
    def read(cls, prepared: CaptureFolder, stage: str, key: str) -> Self:
        record = require(
            prepared.manifest.read_stage(stage, key),
            ("version", "parameters", "seed", "started_at", "finished_at"),
            prepared.fs.absolute(prepared.layout.stage_record(stage, key)),
        )
        return cls(stage, key, record["version"], record["parameters"], record["seed"])


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def request(prepared: CaptureFolder, run: StageRun) -> None:
    """Make this run the stage's current one. What was done before under the same key stays done."""
    try:
        record = prepared.manifest.read_stage(run.stage, run.key)
    except MissingPart:
        record = {
            "stage": run.stage,
            "key": run.key,
            "version": run.version,
            "parameters": run.parameters,
            "seed": run.seed,
            "status": "partial",
            "started_at": _now(),
            "finished_at": None,
        }
    _write(prepared, {**record, "parameters": run.parameters, "requested_at": _now()})


def mark(prepared: CaptureFolder, run: StageRun, status: str) -> None:
    """Set the run's status (done, partial, failed); the first time it is done is when it finished."""
    record = prepared.manifest.read_stage(run.stage, run.key)
    if status == "done" and record["status"] == "done":
        return
    _write(prepared, {**record, "status": status, "finished_at": _now()})


def _write(prepared: CaptureFolder, record: dict[str, Any]) -> None:
    """The record in the manifest, and the same as one row of the table of stages."""
    prepared.manifest.write_stage(record["stage"], record["key"], record)
    rows, quality, done = _totals(prepared, record["stage"], record["key"])
    row = {
        "capture": prepared.layout.capture,
        "stage_key": record["key"],
        "stage": record["stage"],
        "key": record["key"],
        "version": record["version"],
        "status": record["status"],
        "params": json.dumps({**record["parameters"], "seed": record["seed"]}, sort_keys=True),
        "shards_done": done,
        "shards_total": prepared.n_shards,
        "rows": rows,
        "requested_at": record["requested_at"],
        "started_at": record["started_at"],
        "finished_at": record["finished_at"],
        "quality": json.dumps(quality, sort_keys=True),
    }
    path = prepared.layout.stages_table(record["stage"], record["key"])
    write_table(prepared.fs, path, STAGES, pa.Table.from_pylist([row], schema=STAGES.schema))


def _totals(prepared: CaptureFolder, stage: str, key: str) -> tuple[int, dict[str, int], int]:
    """Rows, quality counts and number of shards, summed over the published parts of one run."""
    layout, manifest = prepared.layout, prepared.manifest
    shard_paths = [_shard_record(prepared, stage, key, shard) for shard in range(prepared.n_shards)]
    shards = [p for p in map(manifest.published, shard_paths) if p is not None]
    final = manifest.published(layout.part_record(stage, key, FINAL))
    parts = shards if final is None else [*shards, final]
    quality: Counter[str] = Counter()
    for part in parts:
        quality.update(part.quality)
    return sum(sum(p.rows.values()) for p in parts), dict(quality), len(shards)


def _shard_record(prepared: CaptureFolder, stage: str, key: str, shard: int) -> str:
    if stage == "capture":
        return prepared.layout.shard_record(shard)
    return prepared.layout.part_record(stage, key, shard_part(shard))
