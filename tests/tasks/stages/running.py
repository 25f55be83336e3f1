"""What the tests of stages that run a model again share: small captures, and a stage run as its flow runs it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.capture.folder import CaptureFolder
from tasks.progress import Progress, listening
from tasks.stages.run import SURVEY, finish_stage, prepare_stage, run_stage_shards, stage_parts_left
from tests.tasks.capture import made_captures
from tests.tasks.capture.made_captures import Made, save_model

TEXT = "The quick brown fox jumps over"
WINDOW = 13


def captured(folder: Path, name: str = "llama", *, text: str = TEXT, **settings: Any) -> Made:
    """A tiny model over documents of 13 tokens, the last of them shorter, and more than one block of queries."""
    folder.mkdir(exist_ok=True)
    model, corpus = folder / "model", folder / "text.txt"
    if not model.exists():
        save_model(model, name)
    corpus.write_text(text)
    usual = {"window": WINDOW, "query_block": 5, "device": "cpu"}
    return made_captures.make(model, [corpus], folder / "runs", **{**usual, **settings})


@dataclass(frozen=True)
class Ran:
    """A stage that was done."""

    made: Made
    stage: str
    key: str

    def table(self, name: str) -> pa.Table:
        """Its rows of a table, of all parts."""
        return pq.read_table(self.folder(name))

    def rows(self, name: str) -> list[dict[str, Any]]:
        return self.table(name).to_pylist()

    def folder(self, name: str) -> Path:
        """Where the parts of a table lie."""
        layout = CaptureFolder.open(self.made.runs, self.made.capture).layout
        return (Path(self.made.runs) / layout.table_part(name, self.key, "any")).parent

    def bytes(self, name: str) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in sorted(self.folder(name).iterdir())}

    def record(self) -> dict[str, Any]:
        """The row of the table of stages, its counts as a mapping."""
        prepared = CaptureFolder.open(self.made.runs, self.made.capture)
        path = Path(self.made.runs) / prepared.layout.stages_table(self.stage, self.key)
        (row,) = pq.read_table(path).to_pylist()
        return {**row, "quality": json.loads(row["quality"])}


def run(made: Made, stage: str, values: Mapping[str, Any] | None = None, seed: int = 0) -> Ran:
    """What is left of the stage's survey, if it makes one, and of its shards, and its end."""
    key = prepare_stage(made.runs, made.capture, stage, values or {}, seed)
    run_stage_shards(
        made.runs, made.capture, stage, key, stage_parts_left(made.runs, made.capture, stage, key, SURVEY), SURVEY
    )
    finish_stage(made.runs, made.capture, stage, key, SURVEY)
    run_stage_shards(made.runs, made.capture, stage, key, stage_parts_left(made.runs, made.capture, stage, key))
    finish_stage(made.runs, made.capture, stage, key)
    return Ran(made, stage, key)


def documents_of(made: Made) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Token ids and losses of each document, as the store holds them."""
    readers = [made.store.shard(shard) for shard in made.store.shards]
    return {doc: (reader.token_ids(doc), reader.nll(doc)) for reader in readers for doc in reader.documents}


class Stop(Exception):
    """Ctrl-C, or the machine going away, at a step forward."""


def interrupted(made: Made, stage: str, key: str, *, steps: int, values: Mapping[str, Any] | None = None) -> float:
    """Run the stage's shards until they have gone so many steps forward; how many documents they had come."""
    came = 0.0

    def listener(progress: Progress) -> None:
        nonlocal came, steps
        came, steps = came + progress.step, steps - 1
        if steps < 0:
            raise Stop

    assert prepare_stage(made.runs, made.capture, stage, values or {}) == key
    left = stage_parts_left(made.runs, made.capture, stage, key)
    with listening(listener), pytest.raises(Stop):
        run_stage_shards(made.runs, made.capture, stage, key, left)
    return came
