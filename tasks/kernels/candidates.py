"""The keys of each query in the order of a score, best first: one sort that serves every size of a selection."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float32, Float64, Int64
from torch import Tensor

_HIDDEN = 0x7FFFFFFF << 32
"""Sorts behind every score, as key 0."""


@dataclass(frozen=True)
class Ranked:
    """Candidates of a block of rows (key/value head, row), best first; columns beyond a row's own number are empty."""

    n: Int64[Tensor, " M"]
    """Candidates of each row; the rows of all key/value heads are of the same queries."""
    key: Int64[Tensor, "G M W"]
    """Key, counted from the block's first; 0 where empty."""
    alpha: Float64[Tensor, "G M W"]
    """0 where empty."""
    norm: Float64[Tensor, "G M W"]
    """‖v‖ of the key."""
    whole: int
    """Columns below this are empty in no row."""
    empty: Bool[Tensor, "M E"]
    """Which of the columns from `whole` on are empty."""

    def hide(self, columns: Float64[Tensor, "G M W"], value: float) -> None:
        """Put a value where a row has no candidate."""
        if self.empty.shape[1]:
            columns[..., self.whole :].masked_fill_(self.empty, value)


def ranked(
    score: Float32[Tensor, "G M K"],
    candidate: Bool[Tensor, "M K"],
    alpha: Float64[Tensor, "G M K"],
    norm: Float64[Tensor, "G Mn K"],
) -> Ranked:
    """Sort each row's candidates by score ≥ 0, the largest first, ties to the smaller key.

    The bits of a float32 ≥ 0 rise with it, so score and key make one integer each, and one plain sort of integers does
    both. `norm` has a row per row of scores, or one for all.
    """
    n = candidate.sum(1)
    width = int(n.max())
    packed = (score + 0.0).view(torch.int32).long()  # −0 becomes 0
    packed = torch.add(torch.arange(score.shape[2]), packed, alpha=-(1 << 32)).masked_fill_(~candidate, _HIDDEN)
    packed.numpy().sort(axis=-1)
    key = packed[..., :width].bitwise_and(0xFFFFFFFF)
    whole = int(n.min())
    empty = torch.arange(whole, width) >= n[:, None]
    sorted_alpha = alpha.gather(2, key)
    found = Ranked(n, key, sorted_alpha, norm.expand_as(alpha).gather(2, key), whole, empty)
    found.hide(sorted_alpha, 0.0)
    return found


def shuffled(shape: tuple[int, ...], random: np.random.Generator) -> Float32[Tensor, "*shape"]:
    """Scores in [0, 1) that rank keys at random."""
    return torch.from_numpy(random.random(shape, dtype=np.float32))
