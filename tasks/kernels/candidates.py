"""The keys of each query in the order of a score, best first: one sort that serves every size of a selection."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float32, Int64, UInt32

from tasks.kernels.compiled import compiled

_LAST = 0x7FFFFFFF << 32
"""Sorts behind every score."""


def ranked(
    score: Float32[np.ndarray, "M K"], first: Int64[np.ndarray, " M"], last: Int64[np.ndarray, " M"]
) -> UInt32[np.ndarray, "M K"]:
    """The candidates [first, last) of each row by score ≥ 0, the largest first, ties to the smaller key.

    What stands behind a row's last candidate has no meaning. The bits of a float32 ≥ 0 rise with it, so score and key
    make one integer each, and one plain sort of integers does both.
    """
    packed = np.empty(score.shape, np.int64)
    _pack((score + np.float32(0)).view(np.int32), first, last, packed)  # −0 becomes 0
    packed.sort(axis=-1)
    order = np.empty(score.shape, np.uint32)
    _keys(packed, order)
    return order


@compiled
def _pack(bits: np.ndarray, first: np.ndarray, last: np.ndarray, packed: np.ndarray) -> None:
    for m in range(len(bits)):
        packed[m] = _LAST
        for j in range(first[m], last[m]):
            packed[m, j] = j - (np.int64(bits[m, j]) << 32)


@compiled
def _keys(packed: np.ndarray, order: np.ndarray) -> None:
    for m in range(len(packed)):
        for k in range(packed.shape[1]):
            order[m, k] = np.uint32(packed[m, k] & 0xFFFFFFFF)


def shuffled(shape: tuple[int, ...], random: np.random.Generator) -> Float32[np.ndarray, "*shape"]:
    """Scores in [0, 1) that rank keys at random."""
    return random.random(shape, dtype=np.float32)
