"""The stage `head_ablation` over SmolLM2-135M: all 270 heads, each alone, of one window of 256 tokens.

`python -m benchmarks.ablation TEXT` captures once, then runs each case in a process of its own, alternated. Seconds are
for all heads of one document:

full       270 passes of the plain model, batch 1 (nine of them, scaled): what a script with hooks costs at least
clean      replays that change nothing, from each layer for each of its heads: what the replayed layers, the head and
           the loss cost
ablation   the stage
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from benchmarks.capture import MODEL
from benchmarks.harness import alternate, measured, table
from benchmarks.masking import LAYERS, NoRows, each, opened, prepare

HEADS, PASSES = 9, 9


def full(runs: str, capture: str) -> dict[str, float]:
    """Passes of the plain model with its own attention and no hook."""
    import torch
    from transformers import AutoModelForCausalLM

    replay = opened(runs, capture)
    ids = torch.from_numpy(replay.store.shard(0).token_ids(0)).long()[None]
    model = AutoModelForCausalLM.from_pretrained(MODEL)
    result: dict[str, float] = {}
    with torch.inference_mode(), measured(result):
        for _ in range(PASSES):
            logits = model(ids).logits[0, :-1]
            torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum")
    return each(result, PASSES / (LAYERS * HEADS))


def clean(runs: str, capture: str) -> dict[str, float]:
    """What the layers that run again, the head and the loss cost by themselves."""
    replay, result = opened(runs, capture), dict[str, float]()
    list(replay.run(LAYERS, [()], [0]))
    with measured(result):
        for layer in range(LAYERS):
            list(replay.run(layer, [()] * HEADS, [0]))
    return result


def ablation(runs: str, capture: str) -> dict[str, float]:
    """The stage over one document."""
    from tasks.stages.contract import StageContext
    from tasks.stages.heads import head_ablation
    from tasks.stages.heads.pruning_parameters import HeadAblationParameters

    replay, result = opened(runs, capture), dict[str, float]()
    list(replay.run(LAYERS, [()], [0]))
    context, shard = StageContext("benchmark", 0, replay=replay), replay.store.shard(0)
    with measured(result):
        head_ablation.per_shard(replay.store, shard, HeadAblationParameters(), context, NoRows())
    return result


def main(text: str, rounds: int = 3) -> None:
    rounds = int(os.environ.get("BENCHMARK_ROUNDS", rounds))
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCHMARK_FOLDER")) as runs:
        capture = prepare(str(Path(text).resolve()), runs, 1)
        cases = {name: (name, runs, capture) for name in ("full", "clean", "ablation")}
        results = alternate("benchmarks.ablation", cases, rounds)
    limit = results["clean"]["seconds"]
    rows = [
        {
            "all 270 heads, one document": name,
            "seconds": f"{r['seconds']:.1f}",
            "CPU seconds": f"{r['cpu_seconds']:.1f}",
            "full / this": f"{results['full']['seconds'] / r['seconds']:.2f}",
            "× clean replays": f"{r['seconds'] / limit:.2f}",
            "peak MiB": f"{r['peak_mib']:.0f}",
        }
        for name, r in results.items()
    ]
    print(table(rows))


if __name__ == "__main__":
    runners = {"full": full, "clean": clean, "ablation": ablation}
    if sys.argv[1] in runners:
        print(json.dumps(runners[sys.argv[1]](*sys.argv[2:4])))
    else:
        main(sys.argv[1])
