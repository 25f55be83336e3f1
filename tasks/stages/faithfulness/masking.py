"""The stage `masking`: the loss with the entries, or the keys, masked that a score ranks highest or lowest.

Scores come from the store, which is one clean pass; each condition is one forward pass with the projected values of the
chosen entries zeroed, α as it was (methods.md §1, "Faithfulness by masking"). Documents × conditions run in batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from storage.errors import UsageError
from storage.keys import seed_for
from storage.numbers import spans
from tasks.kernels.visibility import Visibility
from tasks.models.after_attention import norms_after, output_scale
from tasks.stages.faithfulness.masking_grid import KEYS, Cell, expanded
from tasks.stages.faithfulness.rankings import Rankings, ScoredModel, masking
from tasks.stages.replays import clean_losses, label, losses, pieces, replay_of

if TYPE_CHECKING:
    from storage.store_shape import StoreShape
    from storage.tensors import ActivationStore, DocumentLayer, ShardReader
    from tasks.models.interventions import Condition
    from tasks.replay import CapturedReplay
    from tasks.stages.contract import Partial, Rows, StageContext
    from tasks.stages.faithfulness.declaration import MaskingParameters


@dataclass(frozen=True)
class _Plan:
    """Cells that mask the same layers by rankings of one scope, and what is run for them, each condition once."""

    layers: tuple[int, ...]
    cells: tuple[Cell, ...]
    rankings: Rankings

    @cached_property
    def _numbered(self) -> tuple[dict[Condition, int], list[int]]:
        found: dict[Condition, int] = {}
        conditions = (masking(c.ranking, self.layers, c.rate, c.end, self.rankings) for c in self.cells)
        at = [found.setdefault(condition, len(found)) for condition in conditions]
        return found, at

    @property
    def conditions(self) -> list[Condition]:
        return list(self._numbered[0])

    @property
    def of_cells(self) -> list[int]:
        """For each cell, which of the conditions it is."""
        return self._numbered[1]

    @property
    def scope(self) -> str:
        return self.cells[0].ranking.scope


def per_shard(
    store: ActivationStore, shard: ShardReader, parameters: MaskingParameters, context: StageContext, rows: Rows
) -> tuple[Partial, dict[str, int]]:
    """Rows per document and cell of one shard, and how many candidates had no defined score."""
    replay, quality = replay_of(context), Counter[str]()
    rankings = rankings_of(store, shard, parameters, context, replay)
    plans = _plans(parameters, store.shape.kept_layers, rankings)
    pairs = len(store.shape.kept_layers) / sum(len(plan.conditions) for plan in plans)
    for plan in plans:
        layers = label(plan.layers, store.shape)
        found: list[Partial] = []
        for documents in pieces(shard, len(plan.conditions), replay.batch_tokens):
            piece = f"{layers}-{plan.scope}-{documents[0]}"
            found.append(_piece(plan, context, piece, documents, pairs))
        quality["undefined_scores"] += int(sum(part["undefined"].sum() for part in found))
        sums, masked = (np.concatenate([part[name] for part in found]) for name in ("nll_sum", "masked"))
        rows.add("masking", {**_columns(plan, shard, sums[:, plan.of_cells], masked), "layers": layers})
    return {}, dict(quality)


def _piece(plan: _Plan, context: StageContext, piece: str, documents: Sequence[int], pairs: float) -> Partial:
    rankings = plan.rankings
    rankings.forget()

    def beside() -> Partial:
        fractions = [
            [rankings.masked(doc, plan.layers, c.ranking, c.rate, c.end) for c in plan.cells] for doc in documents
        ]
        return {"masked": np.array(fractions), "undefined": np.array([rankings.undefined])}

    return losses(context, piece, plan.layers[0], plan.conditions, documents, pairs, beside)


def _columns(plan: _Plan, shard: ShardReader, sums: np.ndarray, masked: np.ndarray) -> dict[str, Any]:
    """Rows of every document and cell, (documents, cells) raveled."""
    n_documents, n_cells = sums.shape
    of_cells = [cell.columns() for cell in plan.cells]
    named = {name: [columns[name] for columns in of_cells] * n_documents for name in KEYS if name != "layers"}
    clean = {name: np.repeat(values, n_cells) for name, values in clean_losses(shard, shard.documents).items()}
    return {
        "doc": np.repeat(np.array(shard.documents, np.int32), n_cells),
        **named,
        "nll_sum": sums.ravel(),
        "masked_fraction": masked.ravel(),
        **clean,
    }


def _plans(parameters: MaskingParameters, kept: Sequence[int], rankings: Rankings) -> list[_Plan]:
    """Sets of layers that come to the same ones, as `each` and `all` of a store of one layer, are one."""
    plans = dict[tuple[tuple[int, ...], str], _Plan]()
    for (layers, scope), cells in groupby(parameters.cells(), key=lambda cell: (cell.layers, cell.ranking.scope)):
        together = tuple(cells)
        for each in expanded(layers, kept, "masking.layers"):
            plans.setdefault((each, scope), _Plan(each, together, rankings))
    return list(plans.values())


def _require_below(shape: StoreShape) -> None:
    """UsageError unless attention of all layers up to the last one kept is there for rollout to be followed through."""
    below = [layer for layer in shape.attention_layers if layer <= shape.kept_layers[-1]]
    if missing := [layer for layer in below if layer not in shape.kept_layers]:
        raise UsageError(
            f"a store of all layers with attention up to {shape.kept_layers[-1]}, which rollout goes through",
            got=f"one without {spans(missing)}",
            where="masking.scores",
            remedy="Leave rollout out of masking.scores, or capture those layers too.",
        )


def rankings_of(
    store: ActivationStore,
    shard: ShardReader,
    parameters: MaskingParameters,
    context: StageContext,
    replay: CapturedReplay,
) -> Rankings:
    """Rankings of a shard's documents, from what the store holds of them."""
    shape, alti = store.shape, parameters.reads("alti")
    if parameters.reads("rollout"):
        _require_below(shape)
    kinds = ["attention", "value", *(["gate"] if shape.gated else []), *(["residual"] if alti else [])]
    anatomy, lengths = replay.replayer.anatomy, dict(zip(shard.documents, shard.lengths, strict=True))

    def read(document: int, layer: int) -> DocumentLayer:
        return shard.document(document, layer, kinds)

    model = ScoredModel(
        weights=store.weights,
        attended=shape.attention_layers,
        visibility=lambda layer: Visibility(shape.windows[layer], shape.causal),
        norms=norms_after(anatomy) if alti else {},
        scale={layer: output_scale(anatomy, layer) for layer in shape.kept_layers} if alti else {},
    )
    seed = seed_for(context.seed, "masking", replay.prepared.record["key"])
    return Rankings(model, read, lambda document: lengths[document], shape.n_heads, seed)
