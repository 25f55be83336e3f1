"""Token selection beside a plain numpy loop over queries that sorts once per query.

`python -m benchmarks.selection TEXT [LAYERS]` captures three layers (0,15,29, or those given) of one window of 512
tokens of SmolLM2-135M, and takes every query, N = 1 … 256, both rankings, both distances, with the sink and without,
on one thread. The loop's counts (others inside, own inside, inversions) must be ours; ours also have the margins, the
mass and the certificate. It is run on `BENCHMARK_QUERIES` queries (64 by default), evenly spaced, and scaled to all.
Before it the whole stage, reading and writing included, and what all layers and windows would take.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.capture import DOCUMENTS, MODEL, WINDOW
from benchmarks.harness import measured, table
from benchmarks.selection_rival import plain_selection
from tasks.kernels.selection import RANKINGS, SINKS, SIZES, Selection, Selections
from tasks.kernels.values import Values, coherence

DRAWS, DRAWN, ROUNDS = 16, 32, int(os.environ.get("BENCHMARK_ROUNDS", "3"))
GOAL_MILLISECONDS, GOAL_RATIO = 30, 8


def prepare(text: str, runs: str, layers: str) -> str:
    """Capture one window into `runs`; returns the capture's id."""
    from tasks.capture.finish import finish_capture, request_capture
    from tasks.capture.plan import prepare_capture
    from tasks.capture.run import capture_shards, shards_left
    from tasks.capture.settings import CaptureSettings

    kept = {"layers": layers, "keep": "value", "attention": "stored"}
    settings = CaptureSettings(MODEL, (text,), window=WINDOW, max_documents=1, bos="never", **kept)
    capture = prepare_capture(settings, runs)
    request_capture(runs, capture)
    capture_shards(runs, capture, shards_left(runs, capture))
    finish_capture(runs, capture)
    return capture


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Median seconds of several rounds after one to warm up, and the last result."""
    seconds = []
    for _ in range(ROUNDS + 1):
        start = time.perf_counter()
        result = work()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:]), result


def same_counts(selection: Selection, plain: np.ndarray, queries: np.ndarray) -> int:
    """How many counts of the loop's queries differ."""
    different = 0
    for k, name in enumerate(("euclidean", "cosine")):
        found = selection.by_distance[name]
        n, there = np.array(SIZES, float), plain[k, 0] >= 0
        others, own, pairs = plain[k]
        # P and R in float32 tell every count of so few keys from the next.
        precision, recall = (n / (n + others.clip(0))).astype(np.float32), (own / n).astype(np.float32)
        ours = (found.precision[:, queries], found.recall[:, queries], found.inversions[:, queries])
        different += sum(int((a != b)[there].sum()) for a, b in zip(ours, (precision, recall, pairs), strict=True))
    return different


def compare(selections: Selections, value: torch.Tensor, n_loop: int) -> list[dict[str, Any]]:
    """One layer: a row per ranking and sink."""
    chosen = np.linspace(0, WINDOW - 1, n_loop).round().astype(int)
    attention, vectors, rows = selections.attention.numpy(), value.numpy(), []
    for ranking in RANKINGS:
        for sink in SINKS:
            seconds, selection = timed(partial(selections.select, torch.arange(WINDOW), ranking, sink))
            start = time.perf_counter()
            plain = plain_selection(attention, vectors, ranking, sink, SIZES, list(chosen))
            loop = (time.perf_counter() - start) * WINDOW / n_loop
            different = same_counts(selection, plain, chosen)
            rows.append({"ranking": ranking, "sink": sink, "ours": seconds, "loop": loop, "different": different})
    return rows


def control(selections: Selections) -> object:
    """The random rankings of one sink setting."""
    queries = torch.linspace(16, WINDOW - 1, DRAWN).long()
    return selections.random_f(queries, "included", DRAWS, np.random.default_rng(0))


def layer_rows(layer: int, attention: torch.Tensor, value: torch.Tensor, n_loop: int) -> list[dict[str, str]]:
    """The table's rows of one layer; prints what does not stand in it."""
    values = Values.of(value)
    bounds_seconds, bounds = timed(partial(coherence, values))
    selections = Selections(attention, values, coherence=bounds)
    found = compare(selections, value, n_loop)
    control_seconds, _ = timed(partial(control, selections))
    print(
        f"layer {layer}: κ and χ {1e3 * bounds_seconds:.0f} ms; {DRAWS} random rankings of {DRAWN} queries "
        f"{1e3 * control_seconds:.0f} ms"
    )
    return [_shown(layer, row) for row in found]


def _shown(layer: int, row: dict[str, Any]) -> dict[str, str]:
    return {
        "layer": str(layer),
        "ranking": row["ranking"],
        "sink": row["sink"],
        "ours ms": f"{1e3 * row['ours']:.0f}",
        f"goal ≤ {GOAL_MILLISECONDS}": "yes" if 1e3 * row["ours"] <= GOAL_MILLISECONDS else "no",
        "loop ms": f"{1e3 * row['loop']:.0f}",
        "loop / ours": f"{row['loop'] / row['ours']:.1f}",
        f"goal ≥ {GOAL_RATIO}": "yes" if row["loop"] >= GOAL_RATIO * row["ours"] else "no",
        "counts that differ": str(row["different"]),
    }


def stage(runs: str, capture: str, n_layers: int) -> None:
    """The whole stage over the layers kept, and what all of them would take."""
    from storage.tensors import ActivationStore
    from tasks.capture.folder import CaptureFolder
    from tasks.stages.run import prepare_stage, run_stage_shards

    prepared = CaptureFolder.open(runs, capture)
    model_layers = ActivationStore.open(prepared.fs, capture).shape.n_layers
    key, result = prepare_stage(runs, capture, "selection", {}), dict[str, float]()
    with measured(result):
        run_stage_shards(runs, capture, "selection", key, [0])
    parts = prepared.manifest.parts("selection", key).values()
    rows, size = sum(sum(p.rows.values()) for p in parts), sum(f.size for p in parts for f in p.files.values())
    whole = result["seconds"] * model_layers / n_layers
    print(
        f"the stage, {n_layers} layers of one window: {result['seconds']:.1f} s, {rows:,} rows, {size / 1e6:.0f} MB, "
        f"peak {result['peak_mib']:.0f} MiB; all {model_layers} layers: {whole:.0f} s a window, "
        f"{whole * DOCUMENTS / 60:.0f} min for {DOCUMENTS} windows on one thread"
    )


def main(text: str, layers: str = "0,15,29") -> None:
    from storage.tensors import ActivationStore
    from tasks.capture.folder import CaptureFolder

    n_loop, shown = int(os.environ.get("BENCHMARK_QUERIES", "64")), []
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCHMARK_FOLDER")) as runs:
        capture = prepare(str(Path(text).resolve()), runs, layers)
        torch.set_num_threads(1)
        store = ActivationStore.open(CaptureFolder.open(runs, capture).fs, capture)
        stage(runs, capture, len(store.shape.kept_layers))  # first, so that its memory is its own
        for layer in store.shape.kept_layers:
            (document,) = store.shard(0).layer(layer, ("attention", "value"))
            assert document.attention is not None and document.value is not None
            shown += layer_rows(layer, document.attention, document.value, n_loop)
        print(table(shown))


if __name__ == "__main__":
    main(*sys.argv[1:3])
