"""The stage `pruning`: the loss with whole heads zeroed, in the order of a strategy, until a share of them stays.

What goes is z, all that a head gives to the output projection. The orders rest on a survey of the whole capture and on
the weights (methods.md §2, "Pruning"); conditions that leave the same heads run once, each from the lowest layer that
loses a head.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from storage.errors import UsageError
from storage.keys import seed_for
from tasks.kernels.head_order import ascending, n_kept, shuffled
from tasks.models.interventions import ScaleHeads, deepest_start
from tasks.stages.heads.pruning_parameters import H_STAR, RANDOM, TAXONOMY_ORDERS
from tasks.stages.heads.pruning_survey import HeadStatistics, combine_survey, survey
from tasks.stages.replays import clean_losses, losses, pieces, replay_of

if TYPE_CHECKING:
    from storage.tensors import ActivationStore, ShardReader
    from tasks.models.interventions import Condition
    from tasks.stages.contract import Partial, Rows, StageContext
    from tasks.stages.heads.pruning_parameters import PruningParameters

__all__ = ["combine_survey", "finish", "per_shard", "survey"]

_MEANS = {"entropy_high": "entropy", "entropy_low": "entropy", "contribution": "contribution", "f_score": "f_score"}
"""Strategies that rank by a mean over rows: of what."""


@dataclass(frozen=True)
class Cell:
    """One condition in the words of the table, and what it does."""

    strategy: str
    retention: float
    seed: int
    heads_kept: int
    condition: Condition


def per_shard(
    store: ActivationStore, shard: ShardReader, parameters: PruningParameters, context: StageContext, rows: Rows
) -> tuple[Partial, dict[str, int]]:
    """Rows per document and cell of one shard."""
    cells = cells_of(store, parameters, _statistics(context), context.seed)
    sums = _sums(store, shard, list(dict.fromkeys(cell.condition for cell in cells)), context)
    n_documents, n_cells = len(shard.documents), len(cells)
    named = {n: [getattr(cell, n) for cell in cells] for n in ("strategy", "retention", "seed", "heads_kept")}
    rows.add(
        "pruning",
        {
            "doc": np.repeat(np.array(shard.documents, np.int32), n_cells),
            **{name: values * n_documents for name, values in named.items()},
            "nll_sum": np.stack([sums[cell.condition] for cell in cells], 1).ravel(),
            **{name: np.repeat(values, n_cells) for name, values in clean_losses(shard, shard.documents).items()},
        },
    )
    return {}, {}


def _sums(
    store: ActivationStore, shard: ShardReader, conditions: Sequence[Condition], context: StageContext
) -> dict[Condition, np.ndarray]:
    """Losses (documents,) under each condition; those that begin at one layer run together."""
    kept, batch_tokens = store.shape.kept_layers, replay_of(context).batch_tokens

    def start(condition: Condition) -> int:
        return deepest_start(condition, kept[-1])

    found: dict[Condition, np.ndarray] = {}
    pairs = len(kept) / len(conditions)
    for layer, of_layer in groupby(sorted(conditions, key=start), key=start):
        together = list(of_layer)
        parts = [
            losses(context, f"from-{layer}-{documents[0]}", layer, together, documents, pairs)["nll_sum"]
            for documents in pieces(shard, len(together), batch_tokens)
        ]
        found |= dict(zip(together, np.concatenate(parts).T, strict=True))
    return found


def cells_of(
    store: ActivationStore, parameters: PruningParameters, statistics: HeadStatistics, seed: int
) -> list[Cell]:
    """Every condition of the stage, strategy by strategy. Raises UsageError where nothing gives a strategy an order."""
    layers, n_heads = store.shape.kept_layers, store.shape.n_heads
    n = len(layers) * n_heads
    found = []
    for strategy, draw, order in _orders(store, parameters, statistics, seed):
        for retention in parameters.retentions:
            kept = n_kept(retention, n)
            gone = sorted(order[: n - kept].tolist())
            by_layer = groupby(gone, key=lambda head: head // n_heads)
            condition = tuple(ScaleHeads(layers[at], tuple(h % n_heads for h in heads), 0.0) for at, heads in by_layer)
            found.append(Cell(strategy, retention, draw, kept, condition))
    return found


def _orders(
    store: ActivationStore, parameters: PruningParameters, statistics: HeadStatistics, seed: int
) -> Iterator[tuple[str, int, np.ndarray]]:
    """(strategy, seed, heads in the order in which they go, numbered layer by layer)."""
    for strategy in parameters.strategies:
        if strategy == RANDOM:
            n = len(store.shape.kept_layers) * store.shape.n_heads
            for draw in range(parameters.seeds):
                yield strategy, draw, shuffled(n, seed_for(seed, "pruning", draw))
        else:
            yield strategy, 0, ascending(*ranked_by(strategy, store, statistics))


def ranked_by(strategy: str, store: ActivationStore, statistics: HeadStatistics) -> tuple[np.ndarray, ...]:
    """What orders the heads, (L, H) each, those go first that have the least; the second breaks ties of the first.

    UsageError where it is defined for no head.
    """
    scores: tuple[np.ndarray, ...]
    if strategy in TAXONOMY_ORDERS:
        scores = statistics.place(TAXONOMY_ORDERS[strategy]), statistics.mean("output_norm")
    elif strategy == H_STAR:
        scores = (statistics.quota(),)
    elif strategy == "weight_magnitude":
        scores = (weight_magnitude(store),)
    else:
        mean = statistics.mean(_MEANS[strategy])
        scores = (-mean if strategy == "entropy_high" else mean,)
    if np.isnan(scores[0]).all():
        raise UsageError(
            f"heads of which what {strategy} ranks by is defined",
            got="none in all documents, which are too short for it",
            where="pruning.strategies",
            remedy=f"Leave {strategy} out of pruning.strategies, or capture longer windows.",
        )
    return scores


def weight_magnitude(store: ActivationStore) -> np.ndarray:
    """‖W_V‖_F ‖W_O‖_F of every head (L, H), W_V of the key/value head that it reads."""
    found = []
    for layer in store.shape.kept_layers:
        of_output = np.linalg.norm(store.weights(layer)[0].double().flatten(1).numpy(), axis=1)
        of_value = store.value_norm(layer).astype(np.float64)
        found.append(np.repeat(of_value, len(of_output) // len(of_value)) * of_output)
    return np.stack(found)


def _statistics(context: StageContext) -> HeadStatistics:
    if context.survey is None:
        raise ValueError("expected a stage that is declared to survey")
    return HeadStatistics(context.survey)


def finish(
    store: ActivationStore, partial: Partial, parameters: PruningParameters, context: StageContext, rows: Rows
) -> dict[str, int]:
    """How many heads each strategy had nothing to rank by, where there are any: these go first."""
    statistics = _statistics(context)
    ranked = (s for s in parameters.strategies if s != RANDOM)
    undefined = {s: int(np.isnan(ranked_by(s, store, statistics)[0]).sum()) for s in ranked}
    return {f"heads_unranked_by_{strategy}": n for strategy, n in undefined.items() if n}
