"""What stages that run the model again have in common: losses by document and condition, kept and told as they come."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from storage.numbers import written

if TYPE_CHECKING:
    from storage.store_shape import StoreShape
    from storage.tensors import ShardReader
    from tasks.models.interventions import Condition
    from tasks.models.observation import Observables, Observed
    from tasks.replay import CapturedReplay
    from tasks.stages.contract import Partial, StageContext

ALL_LAYERS = "all"
_BATCHES = 8
"""Batches that a piece of work fills where the documents suffice: pieces are what an interrupted run keeps."""


def replay_of(context: StageContext) -> CapturedReplay:
    """The captured model of a stage that is declared to need it."""
    if context.replay is None:
        raise ValueError("expected a stage that is declared to need the model")
    return context.replay


def label(layers: Sequence[int], shape: StoreShape) -> str:
    """Layers as the tables name them: `all` those of the model that have attention, or numbers such as 10-19."""
    return ALL_LAYERS if tuple(layers) == shape.attention_layers else written(frozenset(layers))


def pieces(shard: ShardReader, n_conditions: int, batch_tokens: int) -> Iterator[list[int]]:
    """The shard's documents in pieces of a few batches each, one document at least."""
    size = max(1, _BATCHES * batch_tokens // (max(shard.lengths) * n_conditions))
    for start in range(0, len(shard.documents), size):
        yield shard.documents[start : start + size]


def losses(
    context: StageContext,
    piece: str,
    layer: int,
    conditions: Sequence[Condition],
    documents: Sequence[int],
    pairs: float,
    beside: Callable[[], Partial] = dict,
    observables: Observables | None = None,
    see: Callable[[int, int, Observed], None] | None = None,
) -> Partial:
    """nll_sum: losses in nats summed over each document, (documents, conditions) float64, replayed from `layer`.

    A piece of work that is kept should the shard be interrupted, with the arrays that `beside` gives after the replay.
    pairs: (document, layer) pairs that one document under one condition counts for in the progress. watch: what the
    replay is watched for, and see(document, condition, seen) is called with it, before `beside` is called.
    """
    done = 0

    def compute() -> Partial:
        nonlocal done
        at = {doc: d for d, doc in enumerate(documents)}
        sums = np.full((len(documents), len(conditions)), np.nan)
        for one in replay_of(context).run(layer, conditions, documents, observables):
            sums[at[one.document], one.condition] = one.nll_sum
            if see is not None and one.seen is not None:
                see(one.document, one.condition, one.seen)
            done += 1
            context.advance(pairs)
        return {"nll_sum": sums, **beside()}

    kept = context.once(piece, compute)
    if left := kept["nll_sum"].size - done:  # of an earlier try
        context.advance(pairs * left, True)
    return kept


def clean_losses(shard: ShardReader, documents: Sequence[int]) -> Mapping[str, Any]:
    """What the capture's own pass says of these documents: nll_clean_sum (float64) and n_predicted."""
    clean = [shard.nll(doc)[1:] for doc in documents]
    return {
        "nll_clean_sum": np.array([nll.sum(dtype=np.float64) for nll in clean]),
        "n_predicted": np.array([len(nll) for nll in clean], np.int32),
    }
