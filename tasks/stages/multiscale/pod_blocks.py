"""The fluctuations of one layer's ensemble, and their nulls, in blocks of snapshots that fit into memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator

import numpy as np

from storage.keys import seed_for
from tasks.kernels.lag_field import LagField
from tasks.kernels.pod_fields import gaussian, shuffle_lags
from tasks.stages.multiscale.ensemble import Ensemble

BLOCK_BYTES = 1 << 28
"""A block of float64 fluctuations; two are in memory at most."""
OBSERVED, LAG_SHUFFLE, GAUSSIAN = "observed", "lag_shuffle", "gaussian"
NULLS = (LAG_SHUFFLE, GAUSSIAN)

Source = tuple[str, int]
"""A field and its draw."""


class Blocks:
    """Blocks of snapshots (b, n) of one layer, or one head of it, each snapshot less the ensemble's mean field.

    The mean is worked out first, in one pass, and taken away before any product. A small ensemble is one block, read
    once; of a larger one blocks are read from the store again when they are asked for.
    """

    def __init__(self, ensemble: Ensemble, layer: int, head: int | None, seed: int, block_bytes: int = BLOCK_BYTES):
        self.ensemble, self.layer, self.head, self._seed = ensemble, layer, head, seed
        self.lags = LagField(ensemble.n_tokens, ensemble.store.shape.windows[layer])
        self.size = max(1, min(len(ensemble), block_bytes // (8 * len(self.lags))))
        self.mean, self._squares = np.zeros(len(self.lags)), np.zeros(len(self.lags))
        self._kept: OrderedDict[tuple[Source, int], np.ndarray] = OrderedDict()

    def __len__(self) -> int:
        return len(self.slices())

    def slices(self) -> list[slice]:
        """The snapshots of each block."""
        n = len(self.ensemble)
        return [slice(start, min(start + self.size, n)) for start in range(0, n, self.size)]

    def prepare(self, look: Callable[[np.ndarray], None] | None = None) -> None:
        """One pass over all fields, in order: `look` sees each (T, T), and the mean and variance are worked out."""
        kept = np.empty((self.size, len(self.lags))) if len(self) == 1 else None
        step, moved = np.empty_like(self.mean), np.empty_like(self.mean)
        for at, triangle in enumerate(self.ensemble.triangles(self.layer, self.head)):
            packed = self.lags.select(triangle)
            if look is not None:
                look(self.lags.unpack(packed))
            np.subtract(packed, self.mean, out=step)  # Welford's mean and sum of squares: equal fields leave exactly 0
            self.mean += np.divide(step, at + 1, out=moved)
            self._squares += np.multiply(step, np.subtract(packed, self.mean, out=moved), out=moved)
            if kept is not None:
                kept[at] = packed
        if kept is not None:
            kept -= self.mean
            self._kept[(OBSERVED, 0), 0] = kept

    @property
    def deviation(self) -> np.ndarray:
        """The standard deviation of each entry over documents (over N − 1, so that noise has the same energy)."""
        return np.sqrt(self._squares / (len(self.ensemble) - 1))

    def get(self, source: Source, at: int) -> np.ndarray:
        """A block of the observed fluctuations, or of a null drawn from them; not to be changed."""
        if (source, at) in self._kept:
            self._kept.move_to_end((source, at))
            return self._kept[source, at]
        while len(self._kept) > 1:
            keep_observed = len(self) == 1 and next(iter(self._kept)) == ((OBSERVED, 0), 0)
            self._kept.popitem(last=keep_observed)
        block = self._made(source, at)
        self._kept[source, at] = block
        return block

    def _made(self, source: Source, at: int) -> np.ndarray:
        field, _ = source
        part = self.slices()[at]
        documents = self.ensemble.documents[part]
        if field == GAUSSIAN:
            block, deviation = np.empty((len(documents), len(self.lags))), self.deviation
            for snapshot, doc in zip(block, documents, strict=True):
                snapshot[:] = gaussian(deviation, self._random(source, doc))
            return block
        block = self.get((OBSERVED, 0), 0).copy() if len(self) == 1 and field != OBSERVED else self._read(part)
        if field == LAG_SHUFFLE:
            for snapshot, doc in zip(block, documents, strict=True):
                shuffle_lags(snapshot, self.lags.starts, self._random(source, doc))
        return block

    def _read(self, part: slice) -> np.ndarray:
        block = np.empty((part.stop - part.start, len(self.lags)))
        found = self.ensemble.triangles(self.layer, self.head, part.start, part.stop)
        for row, triangle in zip(block, found, strict=True):
            np.subtract(self.lags.select(triangle), self.mean, out=row)
        return block

    def _random(self, source: Source, doc: int) -> np.random.Generator:
        place = (self._seed, "pod", *source, self.layer, self.head, doc)
        return np.random.Generator(np.random.Philox(seed_for(*place)))

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Each pair of blocks once, a block with itself too."""
        yield from ((left, right) for left in range(len(self)) for right in range(left, len(self)))


def subsample(n: int, size: int, seed: int) -> np.ndarray:
    """The snapshots of a subsampled ensemble, ascending; larger ones hold smaller ones, and are the same everywhere."""
    random = np.random.Generator(np.random.Philox(seed_for(seed, "pod", "subsample")))
    return np.sort(random.permutation(n)[:size])
