"""Contribution weights beside attention itself and beside the ways in which they are usually computed.

`python -m benchmarks.contributions kernel [large]` times one layer of one document (token means of every score and of
its absolute value, the 8 strongest entries a row), cases alternated in one process, on 1 and on 2 threads:

attention  the eager attention of transformers; and bare: QKᵀ, softmax and V alone
ours       head_outputs and contributions; the matrices of the layer's projection, made once per layer, apart
wide       the same by batched products in the model's width, (H, T, D) arrays
vectors    the same by every α ṽ as a vector, T × T × D a head (SmolLM2's sizes only)

`python -m benchmarks.contributions stage FOLDER` times the whole stage on one thread, reading and writing included, on
a store of SmolLM2's sizes that it writes into FOLDER.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.contributions_rivals import bare_attention, eager_attention, every_vector, wide_products
from benchmarks.harness import alternate, measured, table
from tasks.kernels.contribution import Contributions, contributions
from tasks.kernels.outputs import head_outputs
from tasks.kernels.weights import LayerWeights

EDGES, MODULE = 8, "benchmarks.contributions"


@dataclass(frozen=True)
class Sizes:
    """Query and key/value heads, widths of a value and of the model, tokens; and how often each case is timed."""

    name: str
    n_heads: int
    n_kv_heads: int
    d_value: int
    d_model: int
    n_tokens: int
    rounds: int

    @property
    def operations(self) -> float:
        """Floating-point operations of our products: z, G and v G, z M, and both scores over the causal half."""
        H, T, d = self.n_heads, self.n_tokens, self.d_value
        return 3 * H * T * T * d + 4 * H * T * d * d + 2 * T * (H * d) ** 2


SMALL = Sizes("SmolLM2-135M", 9, 3, 64, 576, 512, 15)
LARGE = (
    Sizes("LLaMA-3-8B", 32, 8, 128, 4096, 1024, 5),
    Sizes("LLaMA-2-7B", 32, 32, 128, 4096, 1024, 5),
)


@dataclass(frozen=True)
class Layer:
    """One layer of one document, made up: what the model has, and what the store holds of it."""

    query: Tensor
    key: Tensor
    value: Tensor
    """(H_kv, T, d_v)"""
    mask: Tensor
    attention: Tensor
    projection: Tensor

    @classmethod
    def random(cls, sizes: Sizes) -> Layer:
        random = torch.Generator().manual_seed(0)
        H, G, T, d = sizes.n_heads, sizes.n_kv_heads, sizes.n_tokens, sizes.d_value
        query, key, value = (torch.randn(n, T, d, generator=random) for n in (H, G, G))
        mask = torch.full((T, T), torch.finfo(torch.float32).min).triu(1)
        logits = 2 * torch.randn(H, T, T, generator=random)
        projection = torch.randn(H, d, sizes.d_model, generator=random) / sizes.d_model**0.5
        return cls(query, key, value, mask, (logits + mask).softmax(-1), projection)

    @property
    def repeated(self) -> Tensor:
        return self.value.repeat_interleave(len(self.query) // len(self.value), 0)


def ours(layer: Layer, weights: LayerWeights, value: Tensor) -> Contributions:
    """`value` (T, H_kv, d_v) as the store gives it."""
    return contributions(layer.attention, head_outputs(layer.attention, value, weights), edges=EDGES)


def alternated(cases: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds of each case, one after the other in every round; the first round only warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(rounds + 1):
        for name, case in cases.items():
            start = time.perf_counter()
            case()
            if number:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(found) for name, found in seconds.items()}


def matmul_rate() -> float:
    """Floating-point operations a second of a large float32 product, on the threads set now."""
    left, right = torch.randn(1024, 1024), torch.randn(1024, 1024)
    return 2 * 1024**3 / alternated({"mm": partial(torch.mm, left, right)}, 7)["mm"]


def kernel(sizes: Sizes, threads: int) -> dict[str, object]:
    torch.set_num_threads(threads)
    layer = Layer.random(sizes)
    weights, value = LayerWeights.of(layer.projection), layer.value.transpose(0, 1).contiguous()
    own = partial(ours, layer, weights, value)
    repeated_key = layer.key.repeat_interleave(len(layer.query) // len(layer.key), 0)
    seconds = alternated(
        {
            "attention": partial(eager_attention, layer.query, layer.key, layer.value, layer.mask),
            "bare": partial(bare_attention, layer.query, repeated_key, layer.repeated),
            "ours": own,
            "projection": partial(LayerWeights.of, layer.projection),
        },
        sizes.rounds,
    )
    arguments = (layer.attention, layer.repeated, layer.projection, EDGES)
    beside = alternated({"ours": own, "wide": partial(wide_products, *arguments)}, 5)
    vectors = alternated({"vectors": partial(every_vector, *arguments)}, 3)["vectors"] if sizes is SMALL else None
    limit = sizes.operations / matmul_rate()
    milliseconds = {f"{name} ms": f"{1e3 * seconds[name]:.1f}" for name in ("attention", "bare", "ours")}
    return {
        "sizes": sizes.name,
        "threads": threads,
        **milliseconds,
        "ours / attention": f"{seconds['ours'] / seconds['attention']:.2f}",
        "ours / bare": f"{seconds['ours'] / seconds['bare']:.2f}",
        "wide / ours": f"{beside['wide'] / beside['ours']:.1f}",
        "vectors / ours": f"{vectors / beside['ours']:.0f}" if vectors else "–",
        "products alone ms": f"{1e3 * limit:.1f}",
        "once per layer ms": f"{1e3 * seconds['projection']:.1f}",
        "peak MiB": f"{alternate(MODULE, {'ours': ['memory', sizes.name]}, 1)['ours']['peak_mib']:.0f}",
    }


def memory(sizes: Sizes) -> dict[str, float]:
    """Peak of one call above the layer's own tensors, in a process that has done nothing else."""
    torch.set_num_threads(1)
    layer, small = Layer.random(sizes), Layer.random(replace(SMALL, n_tokens=8))
    weights, value = LayerWeights.of(layer.projection), layer.value.transpose(0, 1).contiguous()
    ours(small, LayerWeights.of(small.projection), small.value.transpose(0, 1).contiguous())  # what libraries take once
    result: dict[str, float] = {}
    with measured(result):
        ours(layer, weights, value)
    return result


def main(arguments: list[str]) -> None:
    if arguments in (["kernel"], ["kernel", "large"]):
        sizes = LARGE if arguments[1:] else (SMALL,)
        print(table([kernel(s, threads) for s in sizes for threads in (1, 2)]))
    elif arguments[:1] == ["memory"]:
        print(json.dumps(memory(next(s for s in (SMALL, *LARGE) if s.name == arguments[1]))))
    elif arguments[:1] == ["stage"] and len(arguments) == 2:
        from benchmarks.contributions_stage import stage_rows

        print(table(stage_rows(Path(arguments[1]))))
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
