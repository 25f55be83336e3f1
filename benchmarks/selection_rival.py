"""What token selection is timed against: a plain numpy loop over heads and queries that sorts once per query."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_EQUAL = 1e-6


def plain_selection(
    attention: np.ndarray, value: np.ndarray, ranking: str, sink: str, sizes: Sequence[int], queries: Sequence[int]
) -> np.ndarray:
    """Others inside the sphere, own inside the others' distance, inversions; int64 (2 distances, 3, H, Q, N), −1 empty.

    attention (H, T, T) and value (T, H_kv, d_v) as stored, causal. Everything of a query at once but the sizes.
    """
    n_heads, group = len(attention), len(attention) // value.shape[1]
    found = np.full((2, 3, n_heads, len(queries), len(sizes)), -1)
    vectors = np.ascontiguousarray(value.transpose(1, 0, 2), np.float64)
    norms = np.linalg.norm(vectors, axis=-1)
    first = 1 if sink == "excluded" else 0
    for h in range(n_heads):
        v, length = vectors[h // group], norms[h // group]
        for at, i in enumerate(queries):
            alpha, norm = attention[h, i, first : i + 1].astype(np.float64), length[first : i + 1]
            score = (alpha if ranking == "attention" else alpha * norm).astype(np.float32)
            order = np.argsort(-score, kind="stable")
            _one_query(found[:, :, h, at], alpha[order], v[first : i + 1][order], norm[order], sizes)
    return found


def _one_query(out: np.ndarray, alpha: np.ndarray, v: np.ndarray, norm: np.ndarray, sizes: Sequence[int]) -> None:
    """Counts of every size, of keys in order."""
    n = np.array([size for size in sizes if size < len(alpha)], int)
    if not len(n):
        return
    y, lengths = alpha[:, None] * v, alpha * norm
    total = y[: n[-1]].cumsum(0)[n - 1]  # (N, d_v)
    size = np.linalg.norm(total, axis=1)
    product = v @ total.T  # (keys, N)
    square = (lengths**2)[:, None] - 2 * alpha[:, None] * product + size**2
    euclidean = np.sqrt(np.maximum(square, 0))
    scale = norm[:, None] * size
    cosine = 1 - np.divide(product, scale, out=np.zeros_like(product), where=scale > 0)
    noise = 1e-7 * np.hypot(lengths.max(), size)
    for at, chosen in enumerate(n):
        for k, distance, least in ((0, euclidean[:, at], noise[at]), (1, cosine[:, at], 1e-12)):
            equal = max(_EQUAL * distance.max(), least)
            selected, others = distance[:chosen] + equal, np.sort(distance[chosen:])
            below = np.searchsorted(others, selected, side="right")
            out[k, :, at] = below.max(), (selected < others[0]).sum(), below.sum()
