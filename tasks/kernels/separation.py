"""How well a sphere around the aggregate of the selected keys tells them from the rest."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float32, Float64, Int64, UInt32

from tasks.kernels.aggregates import SIZE
from tasks.kernels.compiled import compiled
from tasks.kernels.distances import (
    HIGHEST,
    LOWEST,
    MARGIN,
    SLACK,
    Ends,
    distances,
    raise_cosine,
    raise_euclidean,
    row_terms,
)
from tasks.kernels.scratch import Scratch

EUCLIDEAN, COSINE = 0, 1
OTHERS, OWN, PAIRS = range(3)
"""Others inside the sphere, own inside the others' distance, inversions."""
_FEW = 8
"""Up to this N comparing is quicker than sorting."""
_SORT = -1
_LEVELS = (1 << 29) - 1
"""Steps between the nearest other and the farthest selected one, in which both are sorted."""


def separations(
    order: UInt32[np.ndarray, "M K"],
    n_candidates: Int64[np.ndarray, " M"],
    alpha: Float32[np.ndarray, "M K"],
    norm: Float64[np.ndarray, "Mn K"],
    product: Float64[np.ndarray, "N M K"],
    figures: Float64[np.ndarray, "3 N M"],
    sizes: Int64[np.ndarray, " N"],
    wanted: tuple[bool, bool],
    with_pairs: bool,
    scratch: Scratch,
) -> tuple[Int64[np.ndarray, "2 3 N M"], Float64[np.ndarray, "2 N M"], Float64[np.ndarray, "N M"]]:
    """Counts, margins and slack (see `distances`) of both distances, or of those wanted, by size and row.

    Alpha, norm and product = ⟨v_j, s_N⟩ are by key, `order` has the keys, best first. Inversions of more than a few
    selected keys are counted by sorting: distances between the nearest other and the farthest selected one become
    integers, which rise with them, and the last bit says whose they are. Two that become one integer have lost their
    order; where one of them is selected and the other is not, the row's inversions are counted one by one.
    """
    n_sizes, n_rows, n_keys = product.shape
    counts, margin = np.zeros((2, 3, n_sizes, n_rows), np.int64), np.zeros((2, n_sizes, n_rows))
    slack, n_large = np.zeros((n_sizes, n_rows)), int((sizes > _FEW).sum()) if with_pairs else 0
    integers = scratch.take("integers", (2 * n_large * n_rows + 1, n_keys), np.int32)
    tasks = scratch.take("tasks", (len(integers), 3), np.int64)
    given = (order, n_candidates, alpha, norm, product, figures, sizes)
    n_tasks = _count_rows(given, wanted, with_pairs, counts, margin, slack, integers, tasks)
    integers[:n_tasks].sort(axis=-1)
    _count_sorted(given, integers, tasks[:n_tasks], counts)
    return counts, margin, slack


@compiled
def _count_rows(
    given: tuple[np.ndarray, ...],
    wanted: tuple[bool, bool],
    with_pairs: bool,
    counts: np.ndarray,
    margin: np.ndarray,
    slack: np.ndarray,
    integers: np.ndarray,
    tasks: np.ndarray,
) -> int:
    """All counts but the inversions that take a sort; returns for how many (distance, N, row) integers wait for it."""
    order, n_candidates, alpha, norm, product, figures, sizes = given
    twice, square, inverse, euclidean, cosine = _rows(order.shape[1])
    n_tasks = 0
    for m in range(len(order)):
        keys, stop = order[m], n_candidates[m]
        longest = row_terms(keys, alpha[m], norm[m if len(norm) > 1 else 0], stop, twice, square, inverse)
        for at in range(len(sizes)):
            n, size = sizes[at], figures[SIZE, at, m]
            if n >= stop:
                continue
            distances(keys, stop, product[at, m], twice, square, inverse, euclidean, cosine)
            for distance in range(2):
                if not wanted[distance]:
                    continue
                x = euclidean if distance == EUCLIDEAN else cosine
                ends = _raised(distance, x, n, stop, size, longest)
                margin[distance, at, m] = ends[MARGIN]
                if distance == EUCLIDEAN:
                    slack[at, m] = ends[SLACK]
                others, own, pairs = _count(x, n, stop, ends, with_pairs)
                counts[distance, OTHERS, at, m], counts[distance, OWN, at, m] = others, own
                counts[distance, PAIRS, at, m] = pairs
                if pairs == _SORT:
                    _integers(x, n, stop, ends, integers[n_tasks])
                    tasks[n_tasks, 0], tasks[n_tasks, 1], tasks[n_tasks, 2] = distance, at, m
                    n_tasks += 1
    return n_tasks


@compiled
def _rows(n_keys: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Room for what is computed of one row. Made once: to take a view of an array costs as much as a short loop."""
    return np.empty(n_keys), np.empty(n_keys), np.empty(n_keys), np.empty(n_keys), np.empty(n_keys)


@compiled
def _raised(distance: int, x: np.ndarray, n: int, stop: int, size: float, longest: float) -> Ends:
    if distance == EUCLIDEAN:
        return raise_euclidean(x, n, stop, size, longest)
    return raise_cosine(x, n, stop, size)


@compiled
def _count(x: np.ndarray, n: int, stop: int, ends: Ends, with_pairs: bool) -> tuple[int, int, int]:
    """Others inside, own inside and inversions of one row, whose first n are raised; _SORT where these take a sort."""
    low, highest = ends[LOWEST], ends[HIGHEST]
    if highest < low:
        return 0, n, 0
    own = 0
    for k in range(n):
        own += x[k] < low
    others = _at_most(x, n, stop, highest)
    if not with_pairs:
        return others, own, 0
    if n > _FEW and highest > low:
        return others, own, _SORT
    return others, own, _pairs(x, n, stop, low)


@compiled
def _at_most(x: np.ndarray, start: int, stop: int, limit: float) -> int:
    """How many of [start, stop) are not above a limit."""
    found = 0
    for k in range(start, stop):
        found += x[k] <= limit
    return found


@compiled
def _pairs(x: np.ndarray, n: int, stop: int, low: float) -> int:
    """Pairs (i ∈ S, j ∉ S) with D_j ≤ D_i, one by one."""
    found = 0
    for i in range(n):
        if x[i] >= low:
            found += _at_most(x, n, stop, x[i])
    return found


@compiled
def _integers(x: np.ndarray, n: int, stop: int, ends: Ends, integers: np.ndarray) -> None:
    """Distances as integers to sort: twice their place between the two ends, and 1 more for the selected."""
    low = ends[LOWEST]
    scale = _LEVELS / (ends[HIGHEST] - low)
    for k in range(n):
        integers[k] = (np.int32(max((x[k] - low) * scale, -1.0)) << 1) | 1
    for k in range(n, stop):
        integers[k] = np.int32(min((x[k] - low) * scale, _LEVELS + 1.0)) << 1
    for k in range(stop, len(integers)):
        integers[k] = 2147483647


@compiled
def _count_sorted(given: tuple[np.ndarray, ...], integers: np.ndarray, tasks: np.ndarray, counts: np.ndarray) -> None:
    """Inversions from sorted integers: before the k-th selected one, at place p_k, stand p_k − k others."""
    _, n_candidates, _, _, _, _, sizes = given
    for t in range(len(tasks)):
        distance, at, m = tasks[t, 0], tasks[t, 1], tasks[t, 2]
        if _has_lost_order(integers[t], n_candidates[m]):
            counts[distance, PAIRS, at, m] = _pairs_of(given, distance, at, m)
            continue
        places = 0
        for k in range(n_candidates[m]):
            places += k * (integers[t, k] & 1)
        counts[distance, PAIRS, at, m] = places - sizes[at] * (sizes[at] - 1) // 2


@compiled
def _has_lost_order(integers: np.ndarray, n: int) -> bool:
    """Whether a selected one and another, inside both ends, share a place."""
    lost = 0
    for k in range(n - 1):
        lost += (integers[k] ^ integers[k + 1]) == 1
    return lost > 0


@compiled
def _pairs_of(given: tuple[np.ndarray, ...], distance: int, at: int, m: int) -> int:
    """Inversions of one row, from its products on."""
    order, n_candidates, alpha, norm, product, figures, sizes = given
    twice, square, inverse, euclidean, cosine = _rows(order.shape[1])
    n, stop = sizes[at], n_candidates[m]
    longest = row_terms(order[m], alpha[m], norm[m if len(norm) > 1 else 0], stop, twice, square, inverse)
    distances(order[m], stop, product[at, m], twice, square, inverse, euclidean, cosine)
    x = euclidean if distance == EUCLIDEAN else cosine
    ends = _raised(distance, x, n, stop, figures[SIZE, at, m], longest)
    return _pairs(x, n, stop, ends[LOWEST])


def precision_recall(n: np.ndarray | int, others: np.ndarray, own: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """P = N / (N + others inside the sphere), R = own inside the others' distance / N."""
    return n / (n + others), own / n


def f_score(precision: np.ndarray, recall: np.ndarray) -> np.ndarray:
    """2PR / (P + R), 0 where recall is 0; precision never is."""
    return 2 * precision * recall / (precision + recall)
