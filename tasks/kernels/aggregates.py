"""The sums of the selected keys' weighted values: all nested sizes in one walk along each row."""

from __future__ import annotations

import numpy as np

from tasks.kernels.compiled import compiled

CANCELLED = 1e-9
"""An aggregate shorter than this share of what it is the sum of is 0: it has no direction."""
SIZE, MASS, LENGTHS = range(3)
"""Rows of `figures`: ‖s_N‖, Σ α and Σ α‖v‖ over the first N."""


@compiled
def aggregates(
    order: np.ndarray,
    n_candidates: np.ndarray,
    alpha: np.ndarray,
    norm: np.ndarray,
    vector: np.ndarray,
    weight: np.ndarray,
    sizes: np.ndarray,
    total: np.ndarray,
    figures: np.ndarray,
) -> None:
    """Fill `total` (N, M, d_v) with s_N, times `weight`, 0 where it cancels; and `figures` (3, N, M).

    order (M, K): keys, best first; alpha (M, K) and norm (M or 1, K): by key; vector (K, d_v); weight: (M, d_v), the
    square of a gate, or (0, d_v) without one; sizes: rising. Rows without more than N candidates are left at 0.
    """
    running = np.empty(vector.shape[1])
    for m in range(len(order)):
        running[:] = 0
        lengths = norm[m if len(norm) > 1 else 0]
        mass, length, done = 0.0, 0.0, 0
        for at in range(len(sizes)):
            n = sizes[at]
            if n >= n_candidates[m]:
                total[at, m] = 0
                figures[:, at, m] = 0
                continue
            _add(running, vector, order[m], alpha[m], done, n)
            for k in range(done, n):
                mass += alpha[m, order[m, k]]
                length += alpha[m, order[m, k]] * lengths[order[m, k]]
            done = n
            size = _length(running, weight, m, total[at, m])
            if size <= CANCELLED * length:
                total[at, m] = 0
                size = 0.0
            figures[SIZE, at, m], figures[MASS, at, m], figures[LENGTHS, at, m] = size, mass, length


@compiled
def _add(running: np.ndarray, vector: np.ndarray, order: np.ndarray, alpha: np.ndarray, start: int, stop: int) -> None:
    """Add the keys at places [start, stop), four at a time, so that the sum is read and written once for four."""
    k = start
    while k + 4 <= stop:
        j0, j1, j2, j3 = order[k], order[k + 1], order[k + 2], order[k + 3]
        a0, a1, a2, a3 = np.float64(alpha[j0]), np.float64(alpha[j1]), np.float64(alpha[j2]), np.float64(alpha[j3])
        for d in range(len(running)):
            running[d] += (a0 * vector[j0, d] + a1 * vector[j1, d]) + (a2 * vector[j2, d] + a3 * vector[j3, d])
        k += 4
    while k < stop:
        j, a = order[k], np.float64(alpha[order[k]])
        for d in range(len(running)):
            running[d] += a * vector[j, d]
        k += 1


@compiled
def _length(running: np.ndarray, weight: np.ndarray, m: int, total: np.ndarray) -> float:
    """Copy the sum into `total`, weighted where there are weights; returns its length under them."""
    square = 0.0
    if len(weight):
        for d in range(len(running)):
            total[d] = running[d] * weight[m, d]
            square += running[d] * total[d]
    else:
        for d in range(len(running)):
            total[d] = running[d]
            square += running[d] * running[d]
    return np.sqrt(square)
