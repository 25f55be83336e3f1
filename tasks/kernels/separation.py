"""How well a sphere around the aggregate of the selected keys tells them from the rest."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64, UInt8
from torch import Tensor

from tasks.kernels.candidates import Ranked

EQUAL = 1e-6
"""Distances closer than this share of the row's largest are equal."""
_NOISE = 1e-7
"""What cancellation leaves of a Euclidean distance of 0, as a share of the lengths that it is made of, at most."""
_ANGLE_NOISE = 1e-12
"""The same of a cosine distance."""
_FEW = 4
"""Up to this N comparing is quicker than sorting."""
_FAR = 1e300
"""Stands where a row has no candidate."""


@dataclass(frozen=True)
class Spread:
    """The distances of a block's rows from the aggregate of their first N, up to a function that rises with them.

    order: in place of each distance, selected ones already raised by the tolerance. highest, lowest: the same of ρ_max
    (raised) and of ρ_min. margin: ρ_min − ρ_max, 0 within the tolerance. slack: how far the squares of two distances
    that count as equal may lie apart.
    """

    order: Float64[Tensor, "G M W"]
    highest: Float64[Tensor, "G M"]
    lowest: Float64[Tensor, "G M"]
    margin: Float64[Tensor, "G M"]
    slack: Float64[Tensor, "G M"]


def euclidean_spread(
    ranked: Ranked,
    square: Float64[Tensor, "G M W"],
    product: Float64[Tensor, "G M W"],
    longest: Float64[Tensor, "G M"],
    total: Float64[Tensor, "G M"],
    n: int,
    out: Float64[Tensor, "G M W"],
) -> Spread:
    """D² − ‖s‖² = ‖y‖² − 2 α ⟨v, s⟩ orders as D does; only the selected ones' own root is taken, for the tolerance.

    square: ‖y_j‖², longest: the largest of a row; product: ⟨v_j, s⟩; total: ‖s‖².
    """
    torch.addcmul(square, ranked.alpha, product, value=-2, out=out)
    ranked.hide(out, -_FAR)
    top = out[..., :n].amax(-1)
    largest = torch.maximum(top, out[..., n:].amax(-1)).add_(total).clamp_min_(0)
    ranked.hide(out, _FAR)
    low = out[..., n:].amin(-1)
    scale = (longest + total).sqrt_()
    tolerance = torch.maximum(largest.sqrt_().mul_(EQUAL), scale * _NOISE)
    selected = out[..., :n]
    raised = (selected + total[..., None]).clamp_min_(0).sqrt_().mul_(2).add_(tolerance[..., None])
    selected.addcmul_(raised, tolerance[..., None])
    highest = top + tolerance * (2 * (top + total).clamp_min_(0).sqrt_() + tolerance)
    margin = (low + total).clamp_min_(0).sqrt_() - (top + total).clamp_min_(0).sqrt_()
    slack = tolerance * (2 * largest / EQUAL + tolerance) + _ANGLE_NOISE * scale.square()
    return Spread(out, highest, low, torch.where(margin.abs() <= tolerance, 0, margin), slack)


def cosine_spread(
    ranked: Ranked,
    inverse: Float64[Tensor, "G M W"],
    product: Float64[Tensor, "G M W"],
    total: Float64[Tensor, "G M"],
    n: int,
    out: Float64[Tensor, "G M W"],
) -> Spread:
    """(D − 1) ‖s‖ = −⟨v, s⟩/‖v‖ orders as D does.

    inverse: −1/‖v_j‖, 0 for a value of length 0; total: ‖s‖, 0 where the sum cancels, and D is then 1.
    """
    torch.mul(product, inverse, out=out)
    ranked.hide(out, -_FAR)
    top = out[..., :n].amax(-1)
    scale = torch.where(total > 0, 1 / total, 0)
    largest = torch.maximum(top, out[..., n:].amax(-1)).mul_(scale).add_(1)
    ranked.hide(out, _FAR)
    low = out[..., n:].amin(-1)
    tolerance = largest.mul_(EQUAL).clamp_min_(_ANGLE_NOISE)
    raised = (tolerance * total)[..., None]
    out[..., :n].add_(raised)
    margin = (low - top) * scale
    margin = torch.where(margin.abs() <= tolerance, 0, margin)
    return Spread(out, top + raised[..., 0], low, margin, tolerance)


def inversions(spread: Spread, n: int) -> tuple[Int64[Tensor, "G M"], Int64[Tensor, "G M"], Int64[Tensor, "G M"]]:
    """Pairs (i ∈ S, j ∉ S) with D_j ≤ D_i; the j below the farthest i; the i below the nearest j. Destroys the spread.

    One sort: the last bit of each number says whether it is of S, so the sorted numbers still know. Before the k-th
    selected one, at place p_k, stand p_k − k others. Equal numbers: the others first. A few selected ones are compared
    one by one.
    """
    numbers = spread.order.numpy()
    if n <= _FEW:
        numbers[..., :n].sort(axis=-1)
        others = numbers[..., n:]
        before = torch.from_numpy(np.stack([_count(others <= numbers[..., k, None]) for k in range(n)], -1))
        return before.sum(-1), before[..., -1], count(before == 0)
    bits = numbers.view(np.int64)
    np.bitwise_and(bits, ~1, out=bits)
    np.bitwise_or(bits[..., :n], 1, out=bits[..., :n])
    numbers.sort(axis=-1)
    chosen = np.bitwise_and(_last_bytes(numbers), 1).view(bool)
    place = torch.from_numpy(np.flatnonzero(chosen)).view(*numbers.shape[:-1], n)
    start = torch.arange(0, chosen.size, numbers.shape[-1]).view(*numbers.shape[:-1])
    own = count(place == start[..., None] + torch.arange(n))
    return place.sum(-1) - n * start - n * (n - 1) // 2, place[..., -1] - start - (n - 1), own


def _last_bytes(numbers: Float64[np.ndarray, "G M W"]) -> UInt8[np.ndarray, "G M W"]:
    """The byte of each number that holds its last bit."""
    size = numbers.itemsize
    return numbers.view(np.uint8)[..., 0 if sys.byteorder == "little" else size - 1 :: size]


def _count(flags: Bool[np.ndarray, "G M K"]) -> Int64[np.ndarray, "G M"]:
    return np.count_nonzero(flags, axis=-1)


def count(flags: Bool[Tensor, "G M K"]) -> Int64[Tensor, "G M"]:
    """How many are true."""
    return torch.from_numpy(_count(flags.numpy()))


def inside(spread: Spread, n: int) -> tuple[Int64[Tensor, "G M"], Int64[Tensor, "G M"]]:
    """The last two of `inversions` alone, by comparing."""
    return count(spread.order[..., n:] <= spread.highest[..., None]), count(
        spread.order[..., :n] < spread.lowest[..., None]
    )


def precision_recall(n: np.ndarray | int, others: np.ndarray, own: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """P = N / (N + others inside the sphere), R = own inside the others' distance / N."""
    return n / (n + others), own / n


def f_score(precision: np.ndarray, recall: np.ndarray) -> np.ndarray:
    """2PR / (P + R), 0 where recall is 0; precision never is."""
    return 2 * precision * recall / (precision + recall)


def enough(ranked: Ranked, n: int) -> Bool[Tensor, " M"]:
    """Rows with more than N candidates."""
    return ranked.n > n
