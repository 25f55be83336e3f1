"""What lengths and a bound on cosines say of a selection without any distance: the sink-aware certificate."""

from __future__ import annotations

import numpy as np

from tasks.kernels.aggregates import LENGTHS
from tasks.kernels.compiled import compiled
from tasks.kernels.distances import extremes

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
    length, bound, ends = np.empty(order.shape[1]), np.empty(order.shape[1]), np.empty((len(sizes), 2))
    for m in range(len(order)):
        stop, place = n_candidates[m], -1
        for k in range(stop):
            length[k] = np.float64(alpha[m, order[m, k]]) * norm[0, order[m, k]]
            if order[m, k] == 0 and has_sink[m]:
                place = k
        _ends(length, stop, place, sizes, ends)
        for at in range(len(sizes)):
            n = sizes[at]
            if n >= stop:
                continue
            others = _selected(length, bound, n, place, figures[LENGTHS, at, m], bounds[:, m])
            if _says_nothing(bound, n, place, slack[at, m], others, ends[at]):
                counts[0, at, m], counts[1, at, m] = stop - n, 0
                continue
            _others(length, bound, n, stop, place, others)
            _count(bound, n, stop, slack[at, m], counts[:, at, m])


@compiled
def _ends(length: np.ndarray, stop: int, place: int, sizes: np.ndarray, ends: np.ndarray) -> None:
    """The least and the largest length of those not selected, without the sink, at each size; walked from the back."""
    k, least, most = stop, _FAR, -_FAR
    for at in range(len(sizes) - 1, -1, -1):
        while k > sizes[at]:
            k -= 1
            if k != place:
                least, most = min(least, length[k]), max(most, length[k])
        ends[at, 0], ends[at, 1] = least, most


@compiled
def _selected(
    length: np.ndarray, bound: np.ndarray, n: int, place: int, total: float, bounds: np.ndarray
) -> tuple[float, float]:
    """Upper bounds of the first n; returns what the others' lower bounds ‖y‖(‖y‖ − slope) need: slope, and the sink's
    own. `place` is the sink's, −1 for none; total is Σ ‖y‖ of the first n."""
    pairs, low, high = bounds[0], bounds[1], bounds[2]
    inside = 0 <= place < n
    sink = length[place] if place >= 0 else 0.0
    own = sink if inside else 0.0
    Y = total - own
    slope, curve = 2 * (pairs * Y - own * low), 1 + 2 * pairs
    for k in range(n):
        bound[k] = (slope - curve * length[k]) * length[k]
    if inside:
        bound[place] = -own * own - 2 * own * Y * low
    return 2 * (pairs * Y + own * high), (sink - 2 * Y * high) * sink


@compiled
def _says_nothing(
    bound: np.ndarray,
    n: int,
    place: int,
    slack: float,
    others: tuple[float, float],
    ends: np.ndarray,
) -> bool:
    """Whether all others may lie inside the sphere and none of S surely inside their distance, told by two of them.

    A lower bound is a parabola of the length, largest at an end of the lengths, and the least of them is no larger than
    those at the ends; so is the sink's own.
    """
    if ends[0] > ends[1]:
        return False
    slope, sink = others
    least, most = (ends[0] - slope) * ends[0], (ends[1] - slope) * ends[1]
    largest, lowest = max(least, most), min(least, most)
    if place >= n:
        largest, lowest = max(largest, sink), min(lowest, sink)
    low, high = extremes(bound, 0, n)
    return largest <= high + slack and low >= lowest - slack


@compiled
def _others(length: np.ndarray, bound: np.ndarray, n: int, stop: int, place: int, others: tuple[float, float]) -> None:
    """Lower bounds of the others."""
    slope, sink = others
    for k in range(n, stop):
        bound[k] = (length[k] - slope) * length[k]
    if place >= n:
        bound[place] = sink


@compiled
def _count(bound: np.ndarray, n: int, stop: int, slack: float, counts: np.ndarray) -> None:
    highest, lowest = extremes(bound, 0, n)[1], extremes(bound, n, stop)[0]
    inside = own = 0
    for k in range(n, stop):
        inside += bound[k] <= highest + slack
    for k in range(n):
        own += bound[k] < lowest - slack
    counts[0], counts[1] = inside, own
