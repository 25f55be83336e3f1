"""The ensemble that the stages `scalogram`, `pod` and `coherency` are about: the fields of all windows of one length.

Each layer needs every document at once, so a shard of such a stage does not do its own documents but its share of the
layers, over all of them: layers are independent, and any schedule gives the same bytes. Which documents there are is
the stage's survey.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tasks.kernels.lag_field import LagField

if TYPE_CHECKING:
    from storage.tensors import ActivationStore, ShardReader
    from tasks.stages.contract import Partial, StageContext


def one_blas_thread() -> None:
    """Products on one thread from here on, as torch's in a stage that reads the store alone: the shards under way take
    the cores, and the same key gives the same bytes with any number of them."""
    from threadpoolctl import threadpool_limits

    threadpool_limits(limits=1, user_api="blas")


def survey(store: ActivationStore, shard: ShardReader, parameters: object, context: StageContext) -> Partial:
    """The documents of one shard: their numbers, lengths, and the shard's own."""
    n = len(shard.documents)
    context.advance(n * len(store.shape.kept_layers))
    return {
        "doc": np.asarray(shard.documents, np.int32),
        "n_tokens": np.asarray(shard.lengths, np.int32),
        "shard": np.full(n, shard.index, np.int32),
    }


def combine_survey(left: Partial, right: Partial) -> Partial:
    """One after the other."""
    return {name: np.concatenate((left[name], right[name])) for name in left}


@dataclass(frozen=True)
class Ensemble:
    """The documents of the window's length, in order; shorter ones are left out."""

    store: ActivationStore
    n_tokens: int
    shards: dict[int, list[int]]
    """Shard → its documents."""
    left_out: int

    @classmethod
    def of(cls, store: ActivationStore, found: Partial) -> Ensemble:
        """From the survey."""
        n_tokens = int(found["n_tokens"].max())
        whole = found["n_tokens"] == n_tokens
        shards: dict[int, list[int]] = {}
        for doc, shard in zip(found["doc"][whole].tolist(), found["shard"][whole].tolist(), strict=True):
            shards.setdefault(shard, []).append(doc)
        return cls(store, n_tokens, shards, int((~whole).sum()))

    @property
    def documents(self) -> list[int]:
        """Their numbers, in the order in which they are read."""
        return [doc for docs in self.shards.values() for doc in docs]

    def __len__(self) -> int:
        return len(self.documents)

    def fields(self, layer: int, head: int | None = None) -> Iterator[np.ndarray]:
        """The fields (T, T) of a layer, float64, in order: the mean over heads, or one."""
        lags = LagField(self.n_tokens)
        return (lags.unpack(triangle) for triangle in self.triangles(layer, head))

    def triangles(
        self, layer: int, head: int | None = None, start: int = 0, stop: int | None = None
    ) -> Iterator[np.ndarray]:
        """The same as packed triangles, T(T+1)/2 entries row by row, of snapshots `start` to `stop`."""
        wanted = self.documents[start:stop]
        for shard, docs in self.shards.items():
            asked = sorted(set(docs) & set(wanted))
            if not asked:
                continue
            for _, attention in self.store.shard(shard).triangles(layer, asked):
                yield self._mean(attention.numpy()) if head is None else attention[head].numpy().astype(np.float64)

    @staticmethod
    def _mean(attention: np.ndarray) -> np.ndarray:
        """Over heads, (H, n) float32, in float64."""
        total = attention[0].astype(np.float64)
        for of_head in attention[1:]:
            total += of_head
        total /= len(attention)
        return total


@dataclass
class Share:
    """The layers that one shard does, and its progress: as many steps as it has documents and layers."""

    layers: tuple[int, ...]
    _total: float
    _context: StageContext
    _told: float = field(default=0.0)

    @classmethod
    def of(cls, store: ActivationStore, shard: ShardReader, context: StageContext) -> Share:
        assert context.survey is not None  # the stage surveys
        kept, n_shards = store.shape.kept_layers, int(context.survey["shard"].max()) + 1
        return cls(kept[shard.index :: n_shards], float(len(shard.documents) * len(kept)), context)

    def done(self, share: float) -> None:
        """So much of all of it, 0 … 1, is done by now."""
        step = share * self._total - self._told
        if step > 0:
            self._context.advance(step)
            self._told += step
