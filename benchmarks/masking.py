"""The stage `masking` over SmolLM2-135M's windows of 256 tokens, beside one full forward pass with hooks a condition.

`python -m benchmarks.masking TEXT` captures once, then runs every case in a process of its own, alternated. Seconds are
for one document under one condition:

hooks      a full pass of the plain model, batch 1, its attention function exchanged for one that zeroes α where a mask
           says so; the masks of every layer lie ready
clean      replays from layer 0 that change nothing
entry      the stage: scope entry, 4 scores × 8 rates × 2 directions in all layers, scores and ranks included
token      the stage: scope token, the same
from N     replays from layer N that change nothing: what one layer at a time can gain
grid       the whole stage as its flow runs it: 16 windows, scope entry, those 64 conditions (`--grid`; seconds in all)
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.capture import MODEL
from benchmarks.harness import alternate, measured, table

WINDOW, DOCUMENTS, CONDITIONS = 256, 16, 16
SCORES = ("raw", "vw", "vwon", "cw_intra")
RATES = (0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
LAYERS = 30
CORES = len(os.sched_getaffinity(0))


def prepare(text: str, runs: str, documents: int) -> str:
    """Capture the windows into `runs`; returns the capture's id."""
    from tasks.capture.finish import finish_capture, request_capture
    from tasks.capture.plan import prepare_capture
    from tasks.capture.run import capture_shards, shards_left
    from tasks.capture.settings import CaptureSettings

    capture = prepare_capture(CaptureSettings(MODEL, (text,), window=WINDOW, max_documents=documents), runs)
    request_capture(runs, capture)
    capture_shards(runs, capture, shards_left(runs, capture))
    finish_capture(runs, capture)
    return capture


def opened(runs: str, capture: str) -> Any:
    """The captured model, ready to run again, on all cores."""
    import torch

    from tasks.replay import CapturedReplay

    torch.set_num_threads(CORES)
    replay = CapturedReplay.open(runs, capture)
    _ = replay.replayer
    return replay


def replays(runs: str, capture: str, layer: str) -> dict[str, float]:
    """Replays that change nothing."""
    replay, result = opened(runs, capture), dict[str, float]()
    list(replay.run(LAYERS, [()], [0]))
    with measured(result):
        list(replay.run(int(layer), [()] * CONDITIONS, [0]))
    return each(result, CONDITIONS)


def stage(runs: str, capture: str, scope: str) -> dict[str, float]:
    """One document of the stage."""
    from tasks.stages.contract import StageContext
    from tasks.stages.faithfulness import masking
    from tasks.stages.faithfulness.declaration import MaskingParameters

    replay, result = opened(runs, capture), dict[str, float]()
    parameters = MaskingParameters(scopes=(scope,), scores=SCORES, rates=RATES)
    context = StageContext("benchmark", 0, replay=replay)
    shard = replay.store.shard(0)
    with measured(result):
        masking.per_shard(replay.store, shard, parameters, context, NoRows())
    return each(result, len(list(parameters.cells())) * len(shard.documents))


class NoRows:
    """Takes a stage's rows and keeps none."""

    def add(self, table: str, columns: Any) -> None:
        pass


def each(result: dict[str, float], n: int) -> dict[str, float]:
    """Seconds for one of n."""
    return {name: value / n if "seconds" in name else value for name, value in result.items()}


def hooks(runs: str, capture: str, _: str) -> dict[str, float]:
    """What a script does: the plain model once a condition, its α zeroed where a mask says so."""
    import torch
    from transformers import AttentionInterface, AutoModelForCausalLM

    replay = opened(runs, capture)
    ids = torch.from_numpy(replay.store.shard(0).token_ids(0)).long()[None]
    masks: list[torch.Tensor] = []

    def attention(module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: float, **_: Any) -> Any:
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        hidden = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool).triu(1)
        alpha = (query @ key.transpose(2, 3) * scaling).masked_fill(hidden, -torch.inf).softmax(-1)
        alpha = alpha.masked_fill(masks[module.layer_idx], 0)
        return (alpha @ value).transpose(1, 2).contiguous(), None

    AttentionInterface.register("with_hooks", attention)
    model: Any = AutoModelForCausalLM.from_pretrained(MODEL, attn_implementation="with_hooks")
    shape = (1, model.config.num_attention_heads, WINDOW, WINDOW)
    masks += [torch.rand(shape) < 0.1 for _ in range(LAYERS)]
    result: dict[str, float] = {}
    with torch.inference_mode(), measured(result):
        for _ in range(4):
            logits = model(ids).logits[0, :-1]
            torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum")
    return each(result, 4)


def grid(runs: str, capture: str, _: str) -> dict[str, float]:
    """The whole stage, as its flow runs it."""
    import torch

    from tasks.capture.folder import CaptureFolder
    from tasks.stages.run import finish_stage, open_replay, prepare_stage, run_stage_shards

    torch.set_num_threads(CORES)
    changes = {"scopes": ("entry",), "scores": SCORES, "rates": RATES}
    key = prepare_stage(runs, capture, "masking", changes, seed=int.from_bytes(os.urandom(4), "big"))
    open_replay(runs, capture)
    result: dict[str, float] = {}
    with measured(result):
        for shard in range(CaptureFolder.open(runs, capture).n_shards):
            run_stage_shards(runs, capture, "masking", key, [shard])
        finish_stage(runs, capture, "masking", key)
    return result


def main(text: str, rounds: int = 3) -> None:
    rounds = int(os.environ.get("BENCHMARK_ROUNDS", rounds))
    whole = "--grid" in sys.argv
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCHMARK_FOLDER")) as runs:
        capture = prepare(str(Path(text).resolve()), runs, DOCUMENTS if whole else 1)
        if whole:
            print(json.dumps(grid(runs, capture, "")))
            return
        cases = {
            "hooks": ("hooks", runs, capture, ""),
            "clean": ("replays", runs, capture, "0"),
            "entry": ("stage", runs, capture, "entry"),
            "token": ("stage", runs, capture, "token"),
            **{f"from {layer}": ("replays", runs, capture, str(layer)) for layer in (15, 29, LAYERS)},
        }
        results = alternate("benchmarks.masking", cases, rounds)
    base, clean = results["hooks"]["seconds"], results["clean"]["seconds"]
    rows = [
        {
            "one document, one condition": name,
            "seconds": f"{r['seconds']:.3f}",
            "CPU seconds": f"{r['cpu_seconds']:.3f}",
            "hooks / this": f"{base / r['seconds']:.2f}",
            "× clean replay": f"{r['seconds'] / clean:.2f}",
            "peak MiB": f"{r['peak_mib']:.0f}",
        }
        for name, r in results.items()
    ]
    print(table(rows))
    head, half = results[f"from {LAYERS}"]["seconds"], results["from 15"]["seconds"]
    print(f"\nHead and loss are {head / clean:.2f} of a pass: each layer alone can gain {clean / half:.2f} at most.")


if __name__ == "__main__":
    runners = {"hooks": hooks, "replays": replays, "stage": stage, "grid": grid}
    if sys.argv[1] in runners:
        print(json.dumps(runners[sys.argv[1]](*sys.argv[2:5])))
    else:
        main(sys.argv[1])
