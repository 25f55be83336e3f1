"""The stage `perturbation` over SmolLM2-135M: 6 δ × 2 arms × 5 seeds in layers 10–19, of one window of 256 tokens.

`python -m benchmarks.perturbation TEXT` captures once, then runs each case in a process of its own, alternated. Seconds
are for all 60 conditions of one document:

full       60 passes of the plain model, batch 1 (six of them, scaled): what a script with hooks costs at least
clean      60 replays from layer 11 that change nothing: what the replayed layers, the head and the loss cost, the limit
exact      the conditions of the protocol exact, nothing watched
published  the same of the protocol published
stage      the stage, protocol exact: displacements measured and entropies taken, its clean pass included
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.capture import MODEL
from benchmarks.harness import alternate, measured, table
from benchmarks.masking import LAYERS, NoRows, each, opened, prepare

if TYPE_CHECKING:
    from tasks.stages.perturbation.declaration import PerturbationParameters

DELTAS, SEEDS, FIRST, PASSES = (1.0, 2.0, 5.0, 10.0, 15.0, 20.0), 5, 10, 6
CONDITIONS = len(DELTAS) * 2 * SEEDS


def grid(protocol: str) -> PerturbationParameters:
    """What the stage would be set to."""
    from tasks.stages.perturbation.declaration import PerturbationParameters

    return PerturbationParameters(
        protocols=(protocol,), deltas=DELTAS, relative_deltas=(), first_token=("include",), seeds=SEEDS, sampled=0
    )


def full(runs: str, capture: str, _: str) -> dict[str, float]:
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
    return each(result, PASSES / CONDITIONS)


def clean(runs: str, capture: str, _: str) -> dict[str, float]:
    """What the layers that run again, the head and the loss cost by themselves."""
    replay, result = opened(runs, capture), dict[str, float]()
    list(replay.run(LAYERS, [()], [0]))
    with measured(result):
        list(replay.run(FIRST + 1, [()] * CONDITIONS, [0]))
    return result


def perturbed(runs: str, capture: str, protocol: str) -> dict[str, float]:
    """The conditions by themselves."""
    replay, result = opened(runs, capture), dict[str, float]()
    conditions = [cell.condition({}, 0) for cell in grid(protocol).cells(LAYERS)]
    list(replay.run(LAYERS, [()], [0]))
    with measured(result):
        list(replay.run(FIRST + 1, conditions, [0]))
    return result


def stage(runs: str, capture: str, protocol: str) -> dict[str, float]:
    """The stage over one document."""
    from tasks.stages.contract import StageContext
    from tasks.stages.perturbation import perturbation

    replay, result = opened(runs, capture), dict[str, float]()
    list(replay.run(LAYERS, [()], [0]))
    context, shard = StageContext("benchmark", 0, replay=replay, survey={}), replay.store.shard(0)
    with measured(result):
        perturbation.per_shard(replay.store, shard, grid(protocol), context, NoRows())
    return result


def main(text: str, rounds: int = 3) -> None:
    rounds = int(os.environ.get("BENCHMARK_ROUNDS", rounds))
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCHMARK_FOLDER")) as runs:
        capture = prepare(str(Path(text).resolve()), runs, 1)
        cases = {
            "full": ("full", runs, capture, ""),
            "clean": ("clean", runs, capture, ""),
            "exact": ("perturbed", runs, capture, "exact"),
            "published": ("perturbed", runs, capture, "published"),
            "stage": ("stage", runs, capture, "exact"),
        }
        results = alternate("benchmarks.perturbation", cases, rounds)
    limit = results["clean"]["seconds"]
    rows = [
        {
            f"{CONDITIONS} conditions, one document": name,
            "seconds": f"{r['seconds']:.1f}",
            "CPU seconds": f"{r['cpu_seconds']:.1f}",
            "full / this": f"{results['full']['seconds'] / r['seconds']:.2f}",
            "× clean replays": f"{r['seconds'] / limit:.2f}",
            "peak MiB": f"{r['peak_mib']:.0f}",
        }
        for name, r in results.items()
    ]
    print(table(rows))
    print(
        f"\nThe limit, what the layers that run again, the head and the loss cost, is {limit:.1f} s; the aim is 1.10 ×."
    )


if __name__ == "__main__":
    runners = {"full": full, "clean": clean, "perturbed": perturbed, "stage": stage}
    if sys.argv[1] in runners:
        print(json.dumps(runners[sys.argv[1]](*sys.argv[2:5])))
    else:
        main(sys.argv[1])
