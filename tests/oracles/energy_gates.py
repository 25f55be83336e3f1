"""Attention under energy gates in plain loops and float64, from the formula."""

from __future__ import annotations

import math

import numpy as np

EPSILON = 1e-5


def gated_attention(
    scores: np.ndarray, energy: np.ndarray, steepness: float, threshold: float, statistics: str
) -> np.ndarray:
    """One head: scores (T, T) before the softmax and energies (T,) → α (T, T) ∝ softmax · σ(a (z − τ)), rows sum to 1.

    z over the positions up to the query's (causal) or over all (published).
    """
    length = len(energy)
    alpha = np.zeros((length, length))
    for i in range(length):
        taken = energy if statistics == "published" else energy[: i + 1]
        mean = sum(taken) / len(taken)
        deviation = math.sqrt(sum((e - mean) ** 2 for e in taken) / len(taken) + EPSILON)
        softmax = np.exp(scores[i, : i + 1] - scores[i, : i + 1].max())
        softmax /= softmax.sum()
        for j in range(i + 1):
            z = (energy[j] - mean) / deviation
            alpha[i, j] = softmax[j] / (1 + math.exp(-steepness * (z - threshold)))
        alpha[i] /= alpha[i].sum()
    return alpha
