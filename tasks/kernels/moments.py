"""Means and co-moments of many samples, merged without ever subtracting large sums (Chan, Golub & LeVeque 1979)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64


@dataclass(frozen=True)
class Moments:
    """Counts, means of p variables and co-moments of the first c of them, for any number of cells (…)."""

    n: Int64[np.ndarray, "*cells"]
    mean: Float64[np.ndarray, "*cells p"]
    """0 where n = 0."""
    comoment: Float64[np.ndarray, "*cells c c"]
    """Σ (x − x̄)(y − ȳ) over the n samples."""

    @classmethod
    def zeros(cls, cells: tuple[int, ...], p: int, c: int) -> Moments:
        return cls(np.zeros(cells, np.int64), np.zeros((*cells, p)), np.zeros((*cells, c, c)))

    def merge(self, other: Moments) -> Moments:
        """The moments of both sets of samples together; cell by cell, exact up to float64 rounding."""
        n = self.n + other.n
        share = np.divide(other.n, n, out=np.zeros(n.shape), where=n > 0)[..., None]  # of the other side
        delta = other.mean - self.mean
        c = self.comoment.shape[-1]
        between = delta[..., :c, None] * delta[..., None, :c] * (share * self.n[..., None])[..., None]
        return Moments(n, self.mean + delta * share, self.comoment + other.comoment + between)

    def variance(self) -> Float64[np.ndarray, "*cells c"]:
        """Sample variances (divisor n − 1) of the first c variables, ≥ 0; NaN for n < 2."""
        spread = np.diagonal(self.comoment, axis1=-2, axis2=-1)
        enough = np.where(self.n > 1, self.n - 1.0, np.nan)
        return spread / enough[..., None]

    def means(self) -> Float64[np.ndarray, "*cells p"]:
        """Means, NaN where n = 0."""
        return np.where((self.n > 0)[..., None], self.mean, np.nan)
