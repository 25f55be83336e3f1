"""Distances of a row's keys from an aggregate, up to a function that rises with them, and how near two may be."""

from __future__ import annotations

import numpy as np

from tasks.kernels.compiled import compiled

EQUAL = 1e-6
"""Distances closer than this share of the row's largest are equal."""
_NOISE = 1e-7
"""What cancellation leaves of a Euclidean distance of 0, as a share of the lengths that it is made of, at most."""
_ANGLE_NOISE = 1e-12
"""The same of a cosine distance."""
_MOST, _LEAST = np.int64(0x7FFFFFFFFFFFFFFF), np.int64(-0x8000000000000000)
Ends = tuple[float, float, float, float]
"""The margin ρ_min − ρ_max, 0 within the tolerance; how far the squares of two distances that count as equal may lie
apart; the largest of the selected, raised; and the least of the others."""
MARGIN, SLACK, HIGHEST, LOWEST = range(4)


@compiled
def row_terms(
    order: np.ndarray,
    alpha: np.ndarray,
    norm: np.ndarray,
    n: int,
    twice: np.ndarray,
    square: np.ndarray,
    inverse: np.ndarray,
) -> float:
    """Of the n candidates in order: 2α, ‖y‖² and −1/‖v‖ (0 for a value of length 0); returns the largest ‖y‖²."""
    longest = 0.0
    for k in range(n):
        a, length = np.float64(alpha[order[k]]), norm[order[k]]
        twice[k] = 2 * a
        square[k] = (a * length) * (a * length)
        inverse[k] = -1 / length if length > 0 else 0.0
        longest = max(longest, square[k])
    return longest


@compiled
def distances(
    order: np.ndarray,
    n: int,
    product: np.ndarray,
    twice: np.ndarray,
    square: np.ndarray,
    inverse: np.ndarray,
    euclidean: np.ndarray,
    cosine: np.ndarray,
) -> None:
    """D² − ‖s‖² = ‖y‖² − 2α ⟨v, s⟩, and (D − 1)‖s‖ = −⟨v, s⟩/‖v‖ of the other distance; `product` is ⟨v, s⟩ by key."""
    for k in range(n):
        cosine[k] = product[order[k]]
    for k in range(n):
        euclidean[k] = square[k] - twice[k] * cosine[k]
        cosine[k] *= inverse[k]


@compiled
def raise_euclidean(x: np.ndarray, n: int, stop: int, size: float, longest: float) -> Ends:
    """Raise the first n, the selected, by the tolerance; `size` is ‖s‖, `longest` the largest ‖y‖²."""
    total = size * size
    top, (low, high) = _largest(x, n), extremes(x, n, stop)
    largest = np.sqrt(max(max(top, high) + total, 0.0))
    tolerance = max(EQUAL * largest, _NOISE * np.sqrt(longest + total))
    for k in range(n):
        x[k] += tolerance * (2 * np.sqrt(max(x[k] + total, 0.0)) + tolerance)
    margin = np.sqrt(max(low + total, 0.0)) - np.sqrt(max(top + total, 0.0))
    slack = tolerance * (2 * largest + tolerance) + _ANGLE_NOISE * (longest + total)
    highest = _largest(x, n)
    return _margin(margin, tolerance, highest, low), slack, highest, low


@compiled
def raise_cosine(x: np.ndarray, n: int, stop: int, size: float) -> Ends:
    """The same of the cosine distance; `size` is ‖s‖, 0 where the sum cancels, and D is then 1."""
    top, (low, high) = _largest(x, n), extremes(x, n, stop)
    scale = 1 / size if size > 0 else 0.0
    tolerance = max(EQUAL * (max(top, high) * scale + 1), _ANGLE_NOISE)
    for k in range(n):
        x[k] += tolerance * size
    highest = _largest(x, n)
    return _margin((low - top) * scale, tolerance, highest, low), 0.0, highest, low


@compiled
def _margin(margin: float, tolerance: float, highest: float, low: float) -> float:
    """The margin, positive just where the raised ones lie below the others, whatever rounding does."""
    return 0.0 if highest >= low and margin >= -tolerance else margin


@compiled
def _largest(x: np.ndarray, n: int) -> float:
    """Of the first n, as integers in the order of the numbers: of a largest integer a compiler makes vectors."""
    bits, most = x.view(np.int64), _LEAST
    for k in range(n):
        most = max(most, bits[k] ^ ((bits[k] >> 63) & _MOST))
    return np.int64(most ^ ((most >> 63) & _MOST)).view(np.float64)


@compiled
def extremes(x: np.ndarray, start: int, stop: int) -> tuple[float, float]:
    """The least and the largest of [start, stop), which is not empty; in the same way."""
    bits, least, most = x.view(np.int64), _MOST, _LEAST
    for k in range(start, stop):
        value = bits[k] ^ ((bits[k] >> 63) & _MOST)
        least, most = min(least, value), max(most, value)
    low, high = np.int64(least ^ ((least >> 63) & _MOST)), np.int64(most ^ ((most >> 63) & _MOST))
    return low.view(np.float64), high.view(np.float64)
