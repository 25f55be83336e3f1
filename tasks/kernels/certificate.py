"""What lengths and a bound on cosines say of a selection without any distance: the sink-aware certificate."""

from __future__ import annotations

import numpy as np

from tasks.kernels.aggregates import LENGTHS
from tasks.kernels.compiled import compiled

_FAR = 1e300


@compiled
def certificate(
    order: np.ndarray,
    n_candidates: np.ndarray,
    alpha: np.ndarray,
    norm: np.ndarray,
    figures: np.ndarray,
    slack: np.ndarray,
    bounds: np.ndarray,
    has_sink: np.ndarray,
    sizes: np.ndarray,
    counts: np.ndarray,
) -> None:
    """Fill `counts` (2, N, M): at most so many others inside the sphere, at least so many of S inside their distance.

    bounds (3, M): κ, χ_lo, χ_hi of each row; has_sink (M): key 0 of the block is the sink, and a candidate; slack
    (N, M): so far the squares of two distances that count as equal may lie apart. Bounds of D² − ‖s‖² by methods.md §2:
    of an i ∈ S −‖y_i‖² + 2κ‖y_i‖(Y − ‖y_i‖) − 2·1_0 ‖y_i‖‖y_0‖ χ_lo from above, of a j ∉ S ‖y_j‖² − 2κ‖y_j‖Y −
    2·1_0 ‖y_j‖‖y_0‖ χ_hi from below; the sink's own by χ.
    """
    length, bound = np.empty(order.shape[1]), np.empty(order.shape[1])
    for m in range(len(order)):
        stop, place = n_candidates[m], -1
        for k in range(stop):
            length[k] = alpha[m, order[m, k]] * norm[0, order[m, k]]
            if has_sink[m] and order[m, k] == 0:
                place = k
        for at in range(len(sizes)):
            if sizes[at] < stop:
                _bound(length, bound, sizes[at], stop, place, figures[LENGTHS, at, m], bounds[:, m])
                _count(bound, sizes[at], stop, slack[at, m], counts[:, at, m])


@compiled
def _bound(
    length: np.ndarray, bound: np.ndarray, n: int, stop: int, place: int, total: float, bounds: np.ndarray
) -> None:
    """Upper bounds of the first n, lower bounds of the others; `place` is the sink's, −1 for none."""
    pairs, low, high = bounds
    sink = length[place] if 0 <= place < n else 0.0
    Y = total - sink
    slope, curve = 2 * (pairs * Y - sink * low), 1 + 2 * pairs
    for k in range(n):
        bound[k] = (slope - curve * length[k]) * length[k]
    slope = 2 * (pairs * Y + sink * high)
    for k in range(n, stop):
        bound[k] = (length[k] - slope) * length[k]
    if 0 <= place < n:
        bound[place] = -sink * sink - 2 * sink * Y * low
    elif place >= n:
        bound[place] = length[place] * length[place] - 2 * length[place] * Y * high


@compiled
def _count(bound: np.ndarray, n: int, stop: int, slack: float, counts: np.ndarray) -> None:
    highest, lowest = -_FAR, _FAR
    for k in range(n):
        highest = max(highest, bound[k])
    for k in range(n, stop):
        lowest = min(lowest, bound[k])
    inside = own = 0
    for k in range(n, stop):
        inside += bound[k] <= highest + slack
    for k in range(n):
        own += bound[k] < lowest - slack
    counts[0], counts[1] = inside, own
