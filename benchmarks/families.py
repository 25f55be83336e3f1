"""How far attention rebuilt from query and key is from the tapped, per family: `python -m benchmarks.families`.

Tiny random models, those of the tests, three documents of 61, 29 and 2 tokens in one batch, in float32 and bfloat16:
the largest difference over every layer, head and entry. In bfloat16 the model rounds its scores, and the store query
and key: a weight then moves by what rounding may do to a score.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from benchmarks.harness import table
from storage import triangles
from storage.rebuild import rebuilt_attention
from tasks.capture.run import store_shape
from tasks.models.packing import Packing
from tasks.models.rebuild import sink_logits
from tasks.models.run import TapSettings, capture_batch
from tasks.models.table import FALLBACK
from tests.families import NAMES, tokens
from tests.tasks.models.capturing import tiny

LENGTHS = (61, 29, 2)


def captured(loaded: Any, attention: str, dtype: str) -> tuple[Any, dict[tuple[int, str], torch.Tensor]]:
    """The store's shape, and what a capture of the three documents hands to it."""
    shape = store_shape(loaded, {"attention": attention, "store_dtype": dtype})
    found: dict[tuple[int, str], torch.Tensor] = {}
    settings = TapSettings(16, "right", shape.dtypes, Packing.of(shape))
    ids = tokens(*LENGTHS)
    capture_batch(loaded, ids, settings, lambda layer, kind, t: found.update({(layer, kind): t}), range(len(ids)))
    return shape, found


def worst(name: str, dtype: str) -> float | None:
    """The largest difference; None where the family's query and key cannot be kept."""
    loaded = tiny(name, dtype=dtype)
    if loaded.tap_method == FALLBACK:
        return None
    shape, found = captured(loaded, "rebuilt", dtype)
    tapped_shape, tapped = captured(loaded, "stored", dtype)
    entries, differences = [tapped_shape.entries(n) for n in LENGTHS], []
    for layer in loaded.anatomy.attended:
        terms = shape.terms(layer, sink_logits(loaded.anatomy, layer))
        queries, keys = (found[layer, kind].split(LENGTHS) for kind in ("query", "key"))
        for query, key, packed, n in zip(
            queries, keys, tapped[layer, "attention"].float().split(entries, dim=1), LENGTHS, strict=True
        ):
            want = triangles.unpack(packed) if loaded.anatomy.causal else packed.unflatten(1, (n, n))
            differences.append((rebuilt_attention(query, key, terms) - want).abs().max().item())
    return max(differences)


def main() -> None:
    rows = []
    for name in NAMES:
        print(name, file=sys.stderr)
        figures = {dtype: worst(name, dtype) for dtype in ("float32", "bfloat16")}
        shown = {dtype: "–" if figure is None else f"{figure:.1e}" for dtype, figure in figures.items()}
        rows.append({"tiny model": name, **shown})
    print(table(rows))


if __name__ == "__main__":
    main()
