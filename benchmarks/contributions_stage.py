"""The stage `contributions` on a store of SmolLM2's sizes: time of a (document, layer), reading and writing too."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from storage.filesystem import LocalFolder, open_runs
from storage.layout import Layout
from storage.manifest import Manifest, PartRecord, placed
from storage.tables import PartWriter
from storage.tensors import ActivationStore, ShardWriter, StoreShape, model_moves, write_model
from storage.triangles import pack
from tasks.kernels.contribution import contributions
from tasks.kernels.outputs import head_outputs
from tasks.kernels.sink import sink_geometry, tail_mass
from tasks.kernels.weights import LayerWeights
from tasks.stages.contract import StageContext
from tasks.stages.contributions.rows import row_sum_rows, sink_rows, token_score_rows
from tasks.stages.registry import stage

CAPTURE = "benchmark"
DOCUMENTS, LAYERS, WINDOW, HEADS, ROUNDS = 4, 3, 512, 9, 5
STAGE = stage("contributions")
PARTIAL_TABLES = ("token_scores", "contribution_rows", "sink_geometry")


def write_store(fs: LocalFolder, dtype: str) -> ActivationStore:
    """A capture of random values and peaked attention, written as a capture writes it."""
    random = torch.Generator().manual_seed(0)
    shape = StoreShape(LAYERS, HEADS, 3, 576, 64, True, dict.fromkeys(("attention", "value"), dtype), (None,) * LAYERS)
    layout, manifest = Layout(CAPTURE), Manifest(fs, Layout(CAPTURE))
    manifest.write_capture({"name": CAPTURE})
    staging = layout.staging("model")
    projection = torch.randn(LAYERS, HEADS, 64, 576, generator=random) / 24
    files = write_model(fs, staging, shape, projection, None)
    manifest.publish(layout.model_record, PartRecord(placed(files, layout.store)), model_moves(layout, staging))
    writer = ShardWriter(fs, layout.staging("shard"), shape)
    mask = torch.full((WINDOW, WINDOW), -torch.inf).triu(1)
    for batch in range(DOCUMENTS):
        writer.begin_batch(batch, [WINDOW])
        for layer in range(LAYERS):
            attention = (2 * torch.randn(HEADS, WINDOW, WINDOW, generator=random) + mask).softmax(-1)
            writer.add(batch, layer, "attention", pack(attention))
            writer.add(batch, layer, "value", torch.randn(WINDOW, 3, 64, generator=random))
    losses = [np.r_[np.nan, np.ones(WINDOW - 1)].astype(np.float32)] * DOCUMENTS
    files = writer.close(range(DOCUMENTS), [np.zeros(WINDOW, np.int32)] * DOCUMENTS, losses)
    record = PartRecord(placed(files, layout.shard(0)))
    manifest.publish(layout.shard_record(0), record, [(layout.staging("shard"), layout.shard(0))])
    return ActivationStore.open(fs, CAPTURE)


class Tables:
    """Parquet files of the stage's tables, as a part of the stage writes them."""

    def __init__(self, fs: LocalFolder) -> None:
        self.fs, self.writers, self.seconds = fs, dict[str, PartWriter](), 0.0

    def add(self, table: str, columns: Mapping[str, Any]) -> None:
        start = time.perf_counter()
        if table not in self.writers:
            spec = next(t for t in STAGE.tables if t.name == table)
            constants = {"capture": CAPTURE, "stage_key": "0" * 64}
            self.writers[table] = PartWriter(self.fs, f"tables/{table}.parquet", spec, constants)
        self.writers[table].add(columns)
        self.seconds += time.perf_counter() - start

    def close(self) -> None:
        start = time.perf_counter()
        for writer in self.writers.values():
            writer.close()
        self.seconds += time.perf_counter() - start


def whole_stage(store: ActivationStore, tables: Tables) -> None:
    context = StageContext("0" * 64, 0)
    partial, _ = STAGE.steps.per_shard(store, store.shard(0), STAGE.parameters(), context, tables)
    STAGE.steps.finish(store, partial, STAGE.parameters(resamples=2), context, tables)


def scores_rows_and_sink(store: ActivationStore, tables: Tables, shard: int = 0) -> None:
    """Token scores, row sums and sink geometry alone; edges are found, since one pass gives both, and not written."""
    for layer in range(store.shape.n_layers):
        weights = LayerWeights.of(store.weights(layer)[0])
        for document in store.shard(shard).layer(layer):
            attention, value = document.attention, document.value
            assert attention is not None and value is not None
            outputs = head_outputs(attention, value, weights)
            tail = tail_mass(attention)
            found = contributions(attention, outputs)
            key = {"doc": document.doc, "layer": layer}
            tables.add("token_scores", {**key, **token_score_rows(found)})
            tables.add("contribution_rows", {**key, **row_sum_rows(found, outputs, outputs.sink_rate + tail)})
            tables.add("sink_geometry", {**key, **sink_rows(sink_geometry(outputs, weights, tail))})


def reading(store: ActivationStore, _: Tables) -> None:
    for layer in range(LAYERS):
        for _document in store.shard(0).layer(layer):
            pass


def stage_rows(folder: Path) -> list[dict[str, object]]:
    """Milliseconds of a (document, layer) on one thread, medians over rounds in which the cases alternate."""
    torch.set_num_threads(1)
    cases = {"whole stage": whole_stage, "scores, rows, sink geometry": scores_rows_and_sink, "reading": reading}
    rows: list[dict[str, object]] = []
    for dtype in ("float32", "float16"):
        fs = open_runs(str(folder / dtype), create=True)
        store = write_store(fs, dtype)
        found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in cases}
        for number in range(ROUNDS + 1):
            for name, case in cases.items():
                tables, start, cpu = Tables(fs), time.perf_counter(), time.process_time()
                case(store, tables)
                tables.close()
                if number:
                    found[name].append((time.perf_counter() - start, time.process_time() - cpu, tables.seconds))
        for name, seconds in found.items():
            medians = (1e3 * statistics.median(column) / (DOCUMENTS * LAYERS) for column in zip(*seconds, strict=True))
            figures = dict(zip(("ms", "CPU ms", "of which writing"), (f"{m:.1f}" for m in medians), strict=True))
            rows.append({"store": dtype, "case": name, **figures})
    return rows
