"""What a spectrum says of complexity: how fast it decays, and how many modes hold nearly all of its energy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from tasks.kernels.pod import SMALLEST

_MOST_POINTS = 30
_LEAST_POINTS = 3
_ROUNDING = 1e-12
SATURATION = 0.9


@dataclass(frozen=True)
class Decay:
    """A power law λ_k ∝ k^−β, fitted to the first eigenvalues."""

    beta: float
    r2: float
    se: float

    @property
    def t_spec(self) -> float:
        """1/β: large where energy lies over many modes; infinite where nothing decays; NaN without a fit."""
        return np.inf if self.beta == 0 else 1 / self.beta


def decay(eigenvalues: Float64[np.ndarray, " K"]) -> Decay:
    """Least squares of ln λ_k on ln k, k = 1 … 30, over λ_k > 1e-12 λ_1; NaN with fewer than three points.

    eigenvalues: descending, not negative. beta ≥ 0; r2 in 0 … 1, NaN where all are equal; se: standard error of beta.
    Reference: Zeris 2026, arXiv 2606.06573.
    """
    first = eigenvalues[:_MOST_POINTS]
    used = first[first > SMALLEST * first[0]] if len(first) and first[0] > 0 else first[:0]
    if len(used) < _LEAST_POINTS:
        return Decay(np.nan, np.nan, np.nan)
    x, y = np.log(np.arange(1, len(used) + 1)), np.log(used)
    dx, dy = x - x.mean(), y - y.mean()
    slope, spread = float(dx @ dy / (dx @ dx)), float(dy @ dy)
    left = float(np.square(dy - slope * dx).sum())
    equal = spread <= len(used) * _ROUNDING**2
    se = np.sqrt(left / (len(used) - 2) / (dx @ dx))
    return Decay(0.0 if equal else max(-slope, 0.0), np.nan if equal else 1 - left / spread, float(se))


def effective_rank(eigenvalues: Float64[np.ndarray, " K"], epsilon: float) -> int | None:
    """H*(ε) = min{n : Σ_{k>n} λ_k / Σ λ ≤ ε}; None where there is no energy. ε to a relative 1e-12."""
    total = eigenvalues.sum()
    if not total > 0:
        return None
    tail = np.append(np.cumsum(eigenvalues[::-1])[-2::-1], 0.0) / total  # tail[n-1]: what n modes leave
    return int(np.flatnonzero(tail <= epsilon * (1 + _ROUNDING))[0]) + 1


def saturated(rank: int, n_snapshots: int) -> bool:
    """Whether H* ≥ 0.9 (N − 1): N fluctuations span no more than N − 1 dimensions."""
    return rank >= SATURATION * (n_snapshots - 1)
