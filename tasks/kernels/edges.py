"""The k strongest entries of every query row, found without sorting or partitioning whole rows.

Two steps: `candidates` keeps the entries that reach a lower bound of their row's k-th largest (about nine a row for
k = 8), block by block; `rank_candidates` orders those of all rows in one sort. On 9 × 512 × 512 causal entries this
takes about a third of the time of `torch.topk`.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Float32, Int, Int64
from torch import Tensor

_VALUE_BITS = 31
"""A float32 that is not negative, read as an integer, keeps its order in 31 bits."""
_KEY_BITS = 63


def candidates(strength: Float[Tensor, "H q K"], k: int) -> Int64[np.ndarray, " n"]:
    """Flat indices, ascending, of entries that hold the k strongest of each row, and few others.

    `strength` ≥ 0 at the keys that may be chosen, negative at those that may not; no NaN.
    """
    return np.flatnonzero(strength.numpy() >= _lower_bound(strength, k))


def _lower_bound(strength: Float[Tensor, "H q K"], k: int) -> Float32[np.ndarray, "H q 1"]:
    """A number ≥ 0 of each row that at least k of its entries reach, or all those ≥ 0 where they are fewer.

    Keys are dealt like cards onto piles; the k-th largest of the piles' maxima is reached by at least k entries, and
    neighbouring keys, which are often strong together, lie on different piles.
    """
    n_keys = strength.shape[-1]
    piles = max(32, 4 * k)
    if n_keys < k:
        return np.zeros((*strength.shape[:2], 1), np.float32)
    if n_keys < 2 * piles:
        maxima = strength
    else:
        deals, rest = divmod(n_keys, piles)
        maxima = strength[..., : deals * piles].unflatten(-1, (deals, piles)).amax(-2)
        if rest:
            torch.maximum(maxima[..., :rest], strength[..., deals * piles :], out=maxima[..., :rest])
    ordered = np.sort(maxima.numpy(), axis=-1)
    return np.maximum(ordered[..., -k, None], np.float32(0))


def rank_candidates(
    row: Int[np.ndarray, " n"], strength: Float32[np.ndarray, " n"], n_rows: int, k: int
) -> Int64[np.ndarray, "n_rows k"]:
    """Where the k strongest candidates of each row stand among the candidates, strongest first; −1 where fewer.

    `row` ascends; of equal strengths the earlier candidate wins, which is the smaller key. `strength` ≥ 0.
    One sort of integers that hold (row, falling strength, place in the row) orders all rows at once.
    """
    ends = np.cumsum(np.bincount(row, minlength=n_rows))
    starts = np.concatenate((np.zeros(1, np.int64), ends[:-1]))
    place = np.arange(len(row)) - starts[row]
    falling = np.iinfo(np.int32).max - np.ascontiguousarray(strength).view(np.int32)
    place_bits = int(place.max(initial=0)).bit_length()
    if (n_rows - 1).bit_length() + _VALUE_BITS + place_bits <= _KEY_BITS:
        key = (row.astype(np.int64) << (_VALUE_BITS + place_bits)) | (falling.astype(np.int64) << place_bits) | place
        key.sort()
        ranked = starts[row] + (key & ((1 << place_bits) - 1))
    else:  # rows of ten thousand ties
        ranked = np.lexsort((falling, row))
    wanted = starts[:, None] + np.arange(k)
    return np.where(wanted < ends[:, None], np.append(ranked, np.full(k, -1))[wanted], -1)
