"""In which order heads are pruned, and how many stay."""

from __future__ import annotations

import math
from decimal import Decimal

import numpy as np
from jaxtyping import Float64, Int64


def ascending(*scores: Float64[np.ndarray, "L H"]) -> Int64[np.ndarray, " n"]:
    """All heads, numbered layer by layer, by the first score, those of equal scores by the next ones.

    A head without a defined score (NaN) stands before all others of it. Ties go to the lower layer, then head.
    """
    keys = [np.where(np.isnan(score), -np.inf, score).ravel() for score in reversed(scores)]
    return np.lexsort(keys)


def shuffled(n_heads: int, seed: int) -> Int64[np.ndarray, " n"]:
    """All heads in an order that the seed draws."""
    return np.random.Generator(np.random.Philox(seed)).permutation(n_heads)


def n_kept(retention: float, n_heads: int) -> int:
    """⌈r·n⌉ heads stay, worked out on decimals: 0.7 of 30 are 21. Retention in (0, 1]."""
    return math.ceil(Decimal(str(retention)) * n_heads)
