"""Token selection beside a plain numpy loop over queries that sorts once per query.

`python -m benchmarks.selection [LAYERS]` takes three layers (first, middle, last; or those given, as 0,15,29) of one
window of 512 tokens of SmolLM2-135M: every query, N = 1 … 256, both rankings, both distances, with the sink and
without; on one thread. Counts must be identical. `BENCHMARK_MODEL` takes a folder in place of the wheel's GGUF file,
`BENCHMARK_QUERIES` how many queries the loop is timed on, which is then scaled up (64; 512 for all of them).
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.harness import measured, table
from benchmarks.selection_rival import plain_selection
from tasks.kernels.selection import RANKINGS, SINKS, SIZES, Selection, Selections
from tasks.kernels.values import Values, coherence

TOKENS, DRAWS, DRAWN, ROUNDS = 512, 16, 32, 3
GOAL_MILLISECONDS, GOAL_RATIO = 30, 8


def layers_of(model: str, text: str, chosen: list[int] | None) -> tuple[dict[int, tuple[Any, Any]], int]:
    """Attention (H, T, T) and values (T, H_kv, d_v) of the layers chosen, by transformers' own eager attention."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    loaded = AutoModelForCausalLM.from_pretrained(model, attn_implementation="eager", dtype=torch.float32)
    tokens = AutoTokenizer.from_pretrained(model)(text, return_tensors="pt").input_ids[:, :TOKENS]
    n_layers, values = loaded.config.num_hidden_layers, list[torch.Tensor]()
    for block in loaded.model.layers:
        block.self_attn.v_proj.register_forward_hook(lambda _m, _i, out: values.append(out[0]))
    with torch.inference_mode():
        attention = loaded(tokens, output_attentions=True).attentions
    heads = loaded.config.num_key_value_heads
    layers = chosen or [0, n_layers // 2, n_layers - 1]
    return {at: (attention[at][0].clone(), values[at].unflatten(-1, (heads, -1)).clone()) for at in layers}, n_layers


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


def compare(attention: torch.Tensor, value: torch.Tensor, n_loop: int) -> list[dict[str, Any]]:
    """One layer: a row per ranking and sink."""
    values = Values.of(value)
    selections, every = Selections(attention, values, coherence=coherence(values)), torch.arange(TOKENS)
    chosen = np.linspace(0, TOKENS - 1, n_loop).round().astype(int)
    rows = []
    for ranking in RANKINGS:
        for sink in SINKS:
            seconds, selection = timed(partial(selections.select, every, ranking, sink))
            start = time.perf_counter()
            plain = plain_selection(attention.numpy(), value.numpy(), ranking, sink, SIZES, list(chosen))
            loop = (time.perf_counter() - start) * TOKENS / n_loop
            different = same_counts(selection, plain, chosen)
            rows.append({"ranking": ranking, "sink": sink, "ours": seconds, "loop": loop, "different": different})
    return rows


def main(arguments: list[str]) -> None:
    torch.set_num_threads(1)
    model, text = os.environ.get("BENCHMARK_MODEL"), os.environ.get("TEXT")
    if not model or not text:
        raise SystemExit("expected BENCHMARK_MODEL=FOLDER and TEXT=FILE, a text of 50,000 characters or more")
    layers, n_layers = layers_of(
        model, Path(text).read_text("utf-8")[:20_000], [int(n) for n in arguments[0].split(",")] if arguments else None
    )
    n_loop = int(os.environ.get("BENCHMARK_QUERIES", "64"))
    shown, per_window = [], []
    for layer, (attention, value) in layers.items():
        found = compare(attention, value, n_loop)
        for row in found:
            shown.append(_shown(layer, row))
        values, memory = Values.of(value), dict[str, float]()
        prepared, bounds = timed(partial(coherence, values))
        with measured(memory):
            made = Selections(attention, values, coherence=bounds)
            made.select(torch.arange(TOKENS), "attention", "included")
        control, _ = timed(partial(_control, made))
        per_window.append(sum(row["ours"] for row in found) + 2 * control + prepared)
        print(
            f"layer {layer}: κ {1e3 * prepared:.0f} ms; control, {DRAWS} rankings on {DRAWN} queries, "
            f"{1e3 * control:.0f} ms; above the layer's tensors {memory['peak_mib']:.0f} MiB"
        )
    print(table(shown))
    whole = statistics.mean(per_window) * n_layers
    print(f"A window of {TOKENS} tokens, all {n_layers} layers, one thread: {whole:.0f} s without reading and writing.")


def _control(selections: Selections) -> object:
    """The random rankings of one sink setting."""
    queries = torch.linspace(16, TOKENS - 1, DRAWN).long()
    return selections.random_f(queries, "included", DRAWS, np.random.default_rng(0))


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


if __name__ == "__main__":
    main(sys.argv[1:])
