"""What the orders of pruning rest on: statistics of every head over the whole capture (methods.md §2, "Pruning").

Sums and counts per layer and head, over all queries of all documents; a mean leaves out the rows where the quantity is
not defined. Only what the chosen strategies rank by is worked out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from tasks.kernels.contribution import contributions
from tasks.kernels.entropy import row_entropy
from tasks.kernels.head_order import in_proportion
from tasks.kernels.outputs import head_outputs
from tasks.kernels.selection import Selections
from tasks.kernels.taxonomy import CLASSES, classify, tally, winners
from tasks.kernels.values import Values
from tasks.kernels.visibility import Visibility
from tasks.kernels.weights import LayerWeights
from tasks.stages.heads.pruning_parameters import H_STAR, TAXONOMY_ORDERS
from tasks.stages.multiscale.pod_ranks import shard_ranks

if TYPE_CHECKING:
    from storage.tensors import ActivationStore, DocumentLayer, ShardReader
    from tasks.stages.contract import Partial, StageContext
    from tasks.stages.heads.pruning_parameters import PruningParameters

SELECTED = 8
"""N of the F-score that the strategy `f_score` ranks by: attention's best N, Euclidean, position 0 a candidate."""
TALLY = "tally"
_BY_STRATEGY = {
    **dict.fromkeys(TAXONOMY_ORDERS, (TALLY, "output_norm")),
    "entropy_high": ("entropy",),
    "entropy_low": ("entropy",),
    "contribution": ("contribution",),
    "f_score": ("f_score",),
    H_STAR: (H_STAR, "output_norm"),
}
"""What is surveyed for each strategy; the others rank by weights, or by chance."""


def surveyed(strategies: Sequence[str]) -> frozenset[str]:
    """The statistics that these strategies rank by."""
    return frozenset(name for strategy in strategies for name in _BY_STRATEGY.get(strategy, ()))


def survey(store: ActivationStore, shard: ShardReader, parameters: PruningParameters, context: StageContext) -> Partial:
    """Statistics of one shard: `tally` (L, H, 3) of taxonomy's winners, and of each other sums and counts (L, H).

    `h_star` (L,) is of all documents, in the layers of this shard's share, and 0 in the others.
    """
    shape, wanted = store.shape, surveyed(parameters.strategies)
    cells = (len(shape.kept_layers), shape.n_heads)
    found: Partial = {TALLY: np.zeros((*cells, len(CLASSES)), np.int64)} if TALLY in wanted else {}
    if H_STAR in wanted:
        found[H_STAR] = shard_ranks(store, shard, context)
    for name in sorted(wanted - {TALLY, H_STAR}):
        found[f"{name}_sum"], found[f"{name}_n"] = np.zeros(cells), np.zeros(cells, np.int64)
    kinds = ("attention", "value", *(("gate",) if shape.gated else ()))
    for kept, layer in enumerate(shape.kept_layers if wanted else ()):
        weights = LayerWeights.of(store.weights(layer)[0])
        visibility = Visibility(shape.windows[layer], shape.causal)
        for document in shard.layer(layer, kinds):
            _add(found, kept, wanted, document, weights, visibility)
            context.advance(1)
    return found


def _add(
    found: Partial,
    kept: int,
    wanted: frozenset[str],
    document: DocumentLayer,
    weights: LayerWeights,
    visibility: Visibility,
) -> None:
    """Add what one document and layer give."""
    attention, value, gate = document.attention, document.value, document.gate
    assert attention is not None and value is not None  # the stage asks for both
    if TALLY in wanted:
        found[TALLY][kept] += tally(winners(attention, Values.of(value), gate=gate, visibility=visibility))
    by_row: dict[str, Tensor] = {}
    if wanted & {"output_norm", "contribution"}:
        outputs = head_outputs(attention, value, weights, gate=gate, visibility=visibility)
        by_row["output_norm"] = outputs.norm
        if "contribution" in wanted:
            sums = contributions(attention, outputs, edges=1, visibility=visibility).rows
            by_row["contribution"] = sums.cw_inter.abs()
    if "entropy" in wanted:
        by_row["entropy"] = row_entropy(attention, visibility=visibility)
    if "f_score" in wanted:
        by_row["f_score"] = _f_scores(document, visibility)
    for name in sorted(wanted & set(by_row)):
        rows = by_row[name].double()
        found[f"{name}_sum"][kept] += rows.nan_to_num(nan=0.0).sum(-1).numpy()
        found[f"{name}_n"][kept] += (~rows.isnan()).sum(-1).numpy()


def _f_scores(document: DocumentLayer, visibility: Visibility) -> Tensor:
    """F_8 (H, Q) of every query that has more candidates than that."""
    assert document.attention is not None and document.value is not None
    n_tokens = document.n_tokens
    candidates = visibility.last_keys(n_tokens) - visibility.first_keys(n_tokens)
    selections = Selections(
        document.attention,
        Values.of(document.value),
        gate=document.gate,
        visibility=visibility,
        sizes=(SELECTED,),
        distances=("euclidean",),
    )
    selection = selections.select(torch.nonzero(candidates > SELECTED)[:, 0], "attention", "included")
    return torch.from_numpy(selection.by_distance["euclidean"].f_score[..., 0])


def combine_survey(left: Partial, right: Partial) -> Partial:
    """Sums and counts add up."""
    return {name: left[name] + right[name] for name in left}


@dataclass(frozen=True)
class HeadStatistics:
    """What a survey says of every head, (L, H) float64; NaN where nothing defined it."""

    partial: Partial

    def mean(self, name: str) -> np.ndarray:
        """Of output_norm ‖o[h,i]‖, entropy, contribution |Σ_j cw_inter| or f_score, over the rows that define it."""
        total, n = self.partial[f"{name}_sum"], self.partial[f"{name}_n"]
        return np.divide(total, n, out=np.full(total.shape, np.nan), where=n > 0)

    def quota(self) -> np.ndarray:
        """Which heads stay where each layer has them in proportion to its H*, those of most output first."""
        return in_proportion(self.partial[H_STAR], self.mean("output_norm"))

    def place(self, order: Sequence[str]) -> np.ndarray:
        """Where each head's class by plurality stands in an order of classes; NaN where nothing was tallied."""
        places = np.array([*(float(order.index(name)) for name in CLASSES), np.nan])
        return places[classify(self.partial[TALLY], "plurality")]
