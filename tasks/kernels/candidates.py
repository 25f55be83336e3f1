"""The keys of each query in the order of a score, best first: one sort that serves every size of a selection."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float32, Float64, Int64, UInt32

from tasks.kernels.compiled import compiled
from tasks.kernels.scratch import Scratch

_LAST = 0x7FFFFFFF << 32
"""Sorts behind every score."""


def ranked(
    score: Float32[np.ndarray, "M K"],
    factor: Float64[np.ndarray, "Mf K"],
    first: Int64[np.ndarray, " M"],
    last: Int64[np.ndarray, " M"],
    scratch: Scratch,
) -> UInt32[np.ndarray, "M K"]:
    """The candidates [first, last) of each row by score · factor ≥ 0, the largest first, ties to the smaller key.

    Products are compared as float32. `factor` has a row per row of scores, or one for all, or none and is 1. What
    stands behind a row's last candidate has no meaning. The bits of a float32 ≥ 0 rise with it, so score and key make
    one integer each, and one plain sort of integers does both.
    """
    packed = scratch.take("packed", score.shape, np.int64)
    _pack(score, factor, first, last, packed)
    packed.sort(axis=-1)
    order: np.ndarray = scratch.take("order", score.shape, np.uint32)
    _keys(packed, order)
    return order


@compiled
def _pack(score: np.ndarray, factor: np.ndarray, first: np.ndarray, last: np.ndarray, packed: np.ndarray) -> None:
    rounded = np.empty(score.shape[1], np.float32)
    bits = rounded.view(np.int32)
    for m in range(len(score)):
        packed[m] = _LAST
        if len(factor):
            own = factor[m if len(factor) > 1 else 0]
            for j in range(first[m], last[m]):
                rounded[j] = score[m, j] * own[j]
        else:
            rounded[:] = score[m]
        for j in range(first[m], last[m]):
            packed[m, j] = j - (np.int64(bits[j] & 0x7FFFFFFF) << 32)  # −0 becomes 0


@compiled
def _keys(packed: np.ndarray, order: np.ndarray) -> None:
    for m in range(len(packed)):
        for k in range(packed.shape[1]):
            order[m, k] = np.uint32(packed[m, k] & 0xFFFFFFFF)


def shuffled(shape: tuple[int, ...], random: np.random.Generator) -> Float32[np.ndarray, "*shape"]:
    """Scores in [0, 1) that rank keys at random."""
    return random.random(shape, dtype=np.float32)
