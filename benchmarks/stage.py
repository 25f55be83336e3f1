"""The stage `contributions` over SmolLM2-135M's 16 windows of 512 tokens, beside the model's own forward pass.

`python -m benchmarks.stage TEXT` captures once, then runs every case in a process of its own, alternated:

forward   the model's eager forward pass over the windows, on all cores
part      scores, rows and sink geometry from the store to Parquet: as many shards at once as there are cores
whole     the whole stage: those and edges, drift, cone, factors, curve and fits
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.capture import DOCUMENTS, MODEL, WINDOW, bare
from benchmarks.harness import alternate, measured, table

if TYPE_CHECKING:
    from storage.tensors import ActivationStore

CORES = len(os.sched_getaffinity(0))
STAGE = "contributions"


def prepare(text: str, runs: str) -> str:
    """Capture the windows into `runs`; returns the capture's id."""
    from tasks.capture.finish import finish_capture, request_capture
    from tasks.capture.plan import prepare_capture
    from tasks.capture.run import capture_shards, shards_left
    from tasks.capture.settings import CaptureSettings

    settings = CaptureSettings(MODEL, (text,), window=WINDOW, max_documents=DOCUMENTS, bos="never", attention="stored")
    capture = prepare_capture(settings, runs)
    request_capture(runs, capture)
    capture_shards(runs, capture, shards_left(runs, capture))
    finish_capture(runs, capture)
    return capture


def in_threads(work: Callable[[int], object], shards: list[int]) -> None:
    """One shard per core at a time, as the stage's flow does."""
    with ThreadPoolExecutor(CORES) as pool:
        for future in [pool.submit(work, shard) for shard in shards]:
            future.result()


def part(runs: str, capture: str) -> dict[str, float]:
    from storage.tensors import ActivationStore
    from tasks.capture.folder import CaptureFolder

    store = ActivationStore.open(CaptureFolder.open(runs, capture).fs, capture)
    result: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        with measured(result):
            in_threads(partial(_part_of_shard, store, folder), store.shards)
        result["bytes"] = sum(f.stat().st_size for f in Path(folder).rglob("*.parquet"))
    return result


def _part_of_shard(store: ActivationStore, folder: str, shard: int) -> None:
    """The stage's own kernels and writers, without edges' rows, drift, cone and factors."""
    import torch

    from benchmarks.contributions_stage import Tables, scores_rows_and_sink
    from storage.filesystem import open_runs

    torch.set_num_threads(1)
    tables = Tables(open_runs(f"{folder}/{shard}", create=True))
    scores_rows_and_sink(store, tables, shard)
    tables.close()


def whole(runs: str, capture: str) -> dict[str, float]:
    from tasks.capture.folder import CaptureFolder
    from tasks.stages.run import finish_stage, prepare_stage, run_stage_shards

    prepared = CaptureFolder.open(runs, capture)
    key = prepare_stage(runs, capture, STAGE, {"resamples": 2000}, seed=int.from_bytes(os.urandom(4), "big"))
    result: dict[str, float] = {}
    with measured(result):
        in_threads(lambda shard: run_stage_shards(runs, capture, STAGE, key, [shard]), list(range(prepared.n_shards)))
        finish_stage(runs, capture, STAGE, key)
    result["bytes"] = sum(
        file.size for part in prepared.manifest.parts(STAGE, key).values() for file in part.files.values()
    )
    return result


def main(text: str, rounds: int = 3) -> None:
    rounds = int(os.environ.get("BENCHMARK_ROUNDS", rounds))
    os.environ["BENCHMARK_TEXT"] = str(Path(text).resolve())
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCHMARK_FOLDER")) as runs:
        capture = prepare(os.environ["BENCHMARK_TEXT"], runs)
        cases = {
            "forward pass, batch 2": ("forward", "", ""),
            "scores, rows, sink geometry": ("part", runs, capture),
            "the whole stage": ("whole", runs, capture),
        }
        results = alternate("benchmarks.stage", cases, rounds)
    base = results["forward pass, batch 2"]["seconds"]
    rows = [
        {
            "case": name,
            "seconds": f"{r['seconds']:.1f}",
            "× forward": f"{r['seconds'] / base:.2f}",
            "CPU seconds": f"{r['cpu_seconds']:.1f}",
            "peak MiB": f"{r['peak_mib']:.0f}",
            "Parquet MB": f"{r['bytes'] / 1e6:.0f}" if "bytes" in r else "–",
        }
        for name, r in results.items()
    ]
    print(table(rows))


if __name__ == "__main__":
    runners = {"forward": lambda *_: bare(2), "part": part, "whole": whole}
    if sys.argv[1] in runners:
        print(json.dumps(runners[sys.argv[1]](*sys.argv[2:4])))
    else:
        main(sys.argv[1])
