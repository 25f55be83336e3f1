"""Passes of the stage `minimal_pairs`: pairs of BLiMP under 6 δ × 2 arms in layers 10–19 of SmolLM2-135M, and clean.

`python -m benchmarks.minimal_pairs PAIRS.jsonl` captures a little of the file's text once, then runs every case in a
process of its own, alternated:

hooks   the plain model once a condition over all its sentences, 64 in a batch, its layers' outputs moved by hooks, the
        noise of a batch drawn at once: what a script does that batches
ours    the stage's passes
clean   the same replays, from the same layer, that change nothing: what ours can be at best
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
from benchmarks.masking import opened

PAIRS = int(os.environ.get("BENCHMARK_PAIRS", "40"))
DELTAS, ARMS, LAYERS, BATCH = (1.0, 2.0, 5.0, 10.0, 15.0, 20.0), ("magnitude", "angle"), range(10, 20), 64
CONDITIONS = 1 + len(DELTAS) * len(ARMS)


def prepare(pairs: str, runs: str) -> str:
    """Capture a sentence, so that there is a model to run again; returns the capture's id."""
    from tasks.capture.finish import finish_capture, request_capture
    from tasks.capture.plan import prepare_capture
    from tasks.capture.run import capture_shards, shards_left
    from tasks.capture.settings import CaptureSettings

    settings = CaptureSettings(MODEL, (pairs,), field="sentence_good", window=64, max_documents=1)
    capture = prepare_capture(settings, runs)
    request_capture(runs, capture)
    capture_shards(runs, capture, shards_left(runs, capture))
    finish_capture(runs, capture)
    return capture


def encoded(replay: Any, pairs: str) -> Any:
    """The pairs as the stage has them."""
    from tasks.corpora.pairs import PairEncoder, pair_files, read_pairs
    from tasks.models.sources import resolve
    from tasks.models.tokenizer import open_encoder

    encoder = open_encoder(resolve(replay.prepared.settings["model"]))
    encode = PairEncoder(encoder.encode, encoder.bos_id, None).pair
    return [encode(pair) for pair in read_pairs(pair_files([pairs]), PAIRS)]


def ours(runs: str, capture: str, pairs: str, clean: str = "") -> dict[str, float]:
    """The stage's passes, or the same that change nothing."""
    from tasks.stages.perturbation.minimal_pairs_parameters import MinimalPairsParameters
    from tasks.stages.perturbation.minimal_pairs_passes import PairPasses

    replay = opened(runs, capture)
    parameters = MinimalPairsParameters(deltas=DELTAS, relative_deltas=(), layers=("10-19",), files=(pairs,))
    given, result = encoded(replay, pairs), dict[str, float]()
    passes = PairPasses(replay, list(parameters.pair_cells(30)), {}, 0)
    if clean:
        passes = PairPasses(replay, [], {}, 0)
    list(replay.run(30, [()], [0]))
    with measured(result):
        passes.answers(given, lambda _done: None)
        if clean:
            _unchanged(replay, given)
    return result


def _unchanged(replay: Any, given: Any) -> None:
    import torch

    from tasks.models.replay import Start

    width = replay.store.shape.d_model
    sentences = [ids for pair in given for ids in pair.sentences]
    starts = [Start(d, ids, torch.ones(len(ids), width)) for d, ids in enumerate(sentences)]
    list(replay.replayer.run(LAYERS[0] + 1, starts, [()] * (CONDITIONS - 1)))


def hooks(runs: str, capture: str, pairs: str) -> dict[str, float]:
    """What a script does."""
    import torch
    from transformers import AutoModelForCausalLM

    replay = opened(runs, capture)
    sentences = [torch.from_numpy(ids).long() for pair in encoded(replay, pairs) for ids in pair.sentences]
    model: Any = AutoModelForCausalLM.from_pretrained(MODEL)
    now: list[Any] = [None]

    def move(_module: Any, _args: Any, output: Any) -> Any:
        if now[0] is None:
            return output
        (arm, delta), h = now[0], output[0] if isinstance(output, tuple) else output
        norm = h.norm(dim=-1, keepdim=True)
        if arm == "magnitude":
            moved = h * (1 + (torch.randint(0, 2, norm.shape) * 2 - 1) * delta / norm)
        else:
            z = torch.nn.functional.normalize(torch.randn_like(h), dim=-1)
            moved = torch.nn.functional.normalize(h / norm + delta / norm * z, dim=-1) * norm
        return (moved, *output[1:]) if isinstance(output, tuple) else moved

    for layer in LAYERS:
        model.model.layers[layer].register_forward_hook(move)
    result: dict[str, float] = {}
    with torch.inference_mode(), measured(result):
        for condition in (None, *((arm, delta) for arm in ARMS for delta in DELTAS)):
            now[0] = condition
            for start in range(0, len(sentences), BATCH):
                _scores(model, sentences[start : start + BATCH])
    return result


def _scores(model: Any, batch: Any) -> Any:
    import torch

    ids = torch.nn.utils.rnn.pad_sequence(batch, batch_first=True)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(one) for one in batch], batch_first=True)
    logs = model(ids, attention_mask=mask).logits[:, :-1].log_softmax(-1)
    return (logs.gather(-1, ids[:, 1:, None])[..., 0] * mask[:, 1:]).sum(1)


def main(pairs: str, rounds: int = 3) -> None:
    rounds = int(os.environ.get("BENCHMARK_ROUNDS", rounds))
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCHMARK_FOLDER")) as runs:
        place = str(Path(pairs).resolve())
        capture = prepare(place, runs)
        cases = {
            "hooks": ("hooks", runs, capture, place),
            "ours": ("ours", runs, capture, place),
            "clean": ("ours", runs, capture, place, "clean"),
        }
        results = alternate("benchmarks.minimal_pairs", cases, rounds)
    base, whole = results["hooks"], 200 / PAIRS
    rows = [
        {
            f"{PAIRS} pairs, 12 conditions and clean": name,
            "seconds": f"{r['seconds']:.1f}",
            "CPU seconds": f"{r['cpu_seconds']:.1f}",
            "CPU of hooks / this": f"{base['cpu_seconds'] / r['cpu_seconds']:.2f}",
            "CPU minutes, 200 pairs": f"{r['cpu_seconds'] * whole / 60:.1f}",
            "peak MiB": f"{r['peak_mib']:.0f}",
        }
        for name, r in results.items()
    ]
    print(table(rows))


if __name__ == "__main__":
    runners: dict[str, Any] = {"hooks": hooks, "ours": ours}
    if sys.argv[1] in runners:
        print(json.dumps(runners[sys.argv[1]](*sys.argv[2:])))
    else:
        main(sys.argv[1])
