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


def in_proportion(weight: Float64[np.ndarray, " L"], score: Float64[np.ndarray, "L H"]) -> Float64[np.ndarray, "L H"]:
    """Priorities of heads by which any number of them stays in proportion to the layers' weights.

    The k-th best head of a layer by its score has weight/(k − ½): so the heads that stay are shared out by Webster's
    method, which rounds each layer's quota, and what stays at a smaller share stays at a larger one. A head without a
    score (NaN) comes last in its layer; a layer without a weight (NaN, or 0) has no priority, NaN.
    Reference: Balinski & Young 1982, Fair Representation.
    """
    order = np.argsort(-np.where(np.isnan(score), -np.inf, score), axis=1, kind="stable")
    place = np.argsort(order, axis=1, kind="stable")
    return np.where(weight > 0, weight, np.nan)[:, None] / (place + 0.5)


def shuffled(n_heads: int, seed: int) -> Int64[np.ndarray, " n"]:
    """All heads in an order that the seed draws."""
    return np.random.Generator(np.random.Philox(seed)).permutation(n_heads)


def n_kept(retention: float, n_heads: int) -> int:
    """⌈r·n⌉ heads stay, worked out on decimals: 0.7 of 30 are 21. Retention in (0, 1]."""
    return math.ceil(Decimal(str(retention)) * n_heads)
