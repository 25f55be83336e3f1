"""The stage `taxonomy`: Retriever, Mixer or Reset, by where a head's heaviest contribution stands (methods.md §2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from storage.keys import seed_for
from tasks.kernels.taxonomy import CLASSES, RULES, WINNERS, agreement, classify, margin, tally, winners
from tasks.kernels.values import Values
from tasks.kernels.visibility import Visibility

if TYPE_CHECKING:
    from storage.tensors import ActivationStore, ShardReader
    from tasks.stages.contract import Partial, Rows, StageContext
    from tasks.stages.heads.declaration import TaxonomyParameters


def per_shard(
    store: ActivationStore, shard: ShardReader, parameters: TaxonomyParameters, context: StageContext, rows: Rows
) -> tuple[Partial, dict[str, int]]:
    """Who wins how often, per document, layer and head: over all queries i ≥ 1 and at the final one."""
    shape = store.shape
    kinds = ("attention", "value", *(("gate",) if shape.gated else ()))
    counts = np.zeros((2, len(shard.documents), len(shape.kept_layers), shape.n_heads, len(WINNERS)), np.int64)
    silent = 0
    for kept, layer in enumerate(shape.kept_layers):
        visibility = Visibility(shape.windows[layer], shape.causal)
        for index, document in enumerate(shard.layer(layer, kinds)):
            assert document.attention is not None and document.value is not None  # the stage asks for both
            values = Values.of(document.value)
            found = winners(document.attention, values, gate=document.gate, visibility=visibility)
            counts[0, index, kept], counts[1, index, kept] = tally(found), tally(found[:, -1:])
            silent += int((found < 0).sum())
            context.advance(1)
    return {"every": counts[0], "final": counts[1]}, {"queries_without_a_winner": silent}


def combine(left: Partial, right: Partial) -> Partial:
    """Documents one after the other."""
    return {name: np.concatenate((left[name], right[name])) for name in ("every", "final")}


def finish(
    store: ActivationStore, partial: Partial, parameters: TaxonomyParameters, context: StageContext, rows: Rows
) -> dict[str, int]:
    """A row per layer, head and rule; a head of which nothing was tallied has none and is counted."""
    by_document = {rule: partial["final" if rule == "final_query" else "every"] for rule in RULES}
    agreed = {
        rule: agreement(counts, (rule,), seed_for(context.seed, "taxonomy", "halves"))[rule]
        for rule, counts in by_document.items()
    }
    total = np.stack([by_document[rule].sum(0) for rule in RULES], 2)  # (L, H, rule, 3)
    classes = np.stack([classify(total[:, :, at], rule) for at, rule in enumerate(RULES)], 2)
    n = total.sum(-1)
    there = np.flatnonzero(n)
    layer, head, rule = (axis[there].astype(np.int32) for axis in map(np.ravel, np.indices(n.shape)))
    shares = total / np.where(n > 0, n, 1)[..., None]
    columns = {f"share_{winner}": shares[..., at].ravel()[there] for at, winner in enumerate(WINNERS)}
    rows.add(
        "taxonomy",
        {
            "layer": np.asarray(store.shape.kept_layers, np.int32)[layer],
            "head": head,
            "rule": pa.DictionaryArray.from_arrays(rule, list(RULES)),
            "class": pa.DictionaryArray.from_arrays(classes.ravel()[there].astype(np.int32), list(CLASSES)),
            **columns,
            "margin": margin(total).ravel()[there],
            "n": n.ravel()[there],
            "agreement_halves": np.stack([agreed[r] for r in RULES], 2).ravel()[there],
        },
    )
    return {"heads_without_a_class": int((n == 0).sum())}
