"""What POD is done of: fields filtered along the lag, and the nulls that say what noise of the same size would give."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from jaxtyping import Float64, Int64

_NEGLIGIBLE = 1e-9
"""Weights below this are taken as 0: their squares are below float64's rounding of 1."""


def scale_filter(lags: Int64[np.ndarray, " n"], scale: float) -> Float64[np.ndarray, " n"]:
    """exp(−(τ − a*)²/2σ²), σ = a*/2: the weight of each entry in the field filtered at scale a*."""
    return significant(np.exp(-2.0 * (lags / scale - 1.0) ** 2))


def significant(weights: Float64[np.ndarray, " n"]) -> Float64[np.ndarray, " n"]:
    """The weights, with 0 for what is below rounding."""
    return np.where(weights < _NEGLIGIBLE, 0.0, weights)


def shuffle_lags(
    fluctuation: Float64[np.ndarray, " n"], starts: Int64[np.ndarray, " T1"], random: np.random.Generator
) -> None:
    """Permute the lags of each row of one snapshot, in place: the row keeps its values, and loses where they stood.

    starts: where the entries of each query begin, and where the last end.
    """
    for start, stop in pairwise(starts):
        random.shuffle(fluctuation[start:stop])


def gaussian(deviation: Float64[np.ndarray, " n"], random: np.random.Generator) -> Float64[np.ndarray, " n"]:
    """Independent normal entries of mean 0 and these standard deviations."""
    return random.standard_normal(len(deviation)) * deviation
