"""Bootstrap over documents: how often each is drawn, and the interval that the resamples give."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float64

_DRAWS_AT_ONCE = 4_000_000


def resample_counts(n_documents: int, n_resamples: int, seed: int) -> Iterator[Float64[np.ndarray, "R n_documents"]]:
    """How often each document occurs in each resample of `n_documents` with replacement; rows sum to n_documents.

    Yields the resamples in pieces that keep memory bounded; the same seed (any integer ≥ 0) gives the same resamples.
    """
    generator = np.random.Generator(np.random.Philox(seed))
    piece = max(1, _DRAWS_AT_ONCE // n_documents)
    for start in range(0, n_resamples, piece):
        size = min(piece, n_resamples - start)
        drawn = generator.integers(0, n_documents, (size, n_documents))
        drawn += np.arange(size)[:, None] * n_documents
        yield np.bincount(drawn.ravel(), minlength=size * n_documents).reshape(size, n_documents).astype(np.float64)


def percentile_interval(
    estimates: Float64[np.ndarray, R * cells], level: float = 0.95
) -> tuple[Float64[np.ndarray, "*cells"], Float64[np.ndarray, "*cells"]]:
    """The central `level` of the resamples' estimates, by percentiles (Efron 1979).

    NaN estimates (a resample in which the quantity does not exist) are left aside; NaN where more than half are.
    """
    defined = np.sum(~np.isnan(estimates), axis=0)
    ordered = np.sort(estimates, axis=0)  # NaN last
    ends = []
    for share in ((1 - level) / 2, (1 + level) / 2):
        place = share * np.maximum(defined - 1, 0)
        below, above = np.floor(place).astype(int), np.ceil(place).astype(int)
        low, high = (np.take_along_axis(ordered, at[None], axis=0)[0] for at in (below, above))
        end = low + (high - low) * (place - below)
        ends.append(np.where(2 * defined >= len(estimates), end, np.nan))
    return ends[0], ends[1]
