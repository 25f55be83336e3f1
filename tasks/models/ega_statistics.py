"""Mean and inverse deviation of energies: of the positions up to each query, or of the whole window."""

from __future__ import annotations

import torch
from torch import Tensor

CAUSAL, PUBLISHED = "causal", "published"
STATISTICS = (CAUSAL, PUBLISHED)
EPSILON = 1e-5
"""Added to the variance, as LayerNorm adds it: one position, or equal energies, give z = 0."""


def energy_statistics(energy: Tensor, seen: Tensor | None, statistics: str) -> tuple[Tensor, Tensor]:
    """What normalises energies for each query: their mean and 1 / √(variance + ε), (B, H, T), float32 or wider.

    energy (B, H, T); seen (B, 1, T) or (1, 1, T) bool, false where a position is padding; None for no padding.
    `causal`: over positions ≤ the query's, so that nothing follows from later ones, to the last bit; `published`: over
    all positions, which lets every query know of the future. A position before the first that is seen has mean 0.
    """
    wide = energy if energy.dtype == torch.float64 else energy.float()
    valid = torch.ones_like(wide[:1, :1]) if seen is None else seen.to(wide.dtype)
    mean, variance = _running(wide, valid) if statistics == CAUSAL else _whole(wide, valid)
    return mean, (variance + EPSILON).rsqrt()


def _running(energy: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Cumulative moments by Welford's increments, (e_n − mean_{n−1})² (n−1)/n: no difference of squares."""
    count = valid.cumsum(dim=-1)
    some = count.clamp(min=1)
    mean = (energy * valid).cumsum(dim=-1) / some  # (B, H, T)
    before = torch.nn.functional.pad(mean[..., :-1], (1, 0))
    increments = (energy - before).square() * (valid * (count - 1) / some)
    return mean, increments.cumsum(dim=-1) / some


def _whole(energy: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    count = valid.sum(dim=-1, keepdim=True)
    mean = (energy * valid).sum(dim=-1, keepdim=True) / count
    variance = ((energy - mean).square() * valid).sum(dim=-1, keepdim=True) / count
    return mean.expand_as(energy), variance.expand_as(energy)
