"""How the first token's value differs from the others': length, direction, and how alike the others are."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from tasks.kernels.values import Values

_ROWS = 64


@dataclass(frozen=True)
class SinkStatistics:
    """One number per key/value head; NaN where it is not defined."""

    norm_ratio: Float64[Tensor, " G"]
    """‖v_0‖ / mean ‖v_j‖ over j ≥ 1; NaN without other tokens, or where all their values are 0."""
    mean_cosine: Float64[Tensor, " G"]
    """Mean cos(v_0, v_j); values of length 0 have no angle and are left out."""
    norm_cv: Float64[Tensor, " G"]
    """Standard deviation of ‖v_j‖ (over their number) by their mean."""
    coherence_max: Float64[Tensor, " G"]
    """Largest |cos(v_j, v_k)|, 1 ≤ j < k; NaN without a pair."""
    coherence_mean: Float64[Tensor, " G"]
    """Mean cos(v_j, v_k) over the same pairs."""


def sink_statistics(values: Values) -> SinkStatistics:
    """Sink statistics of one document and layer, of values before W_O and before any gate (methods.md §2).

    Reference: Mudarisov et al. 2026, arXiv 2602.01893.
    """
    direction, norm, rest = values.directions(), values.norm, values.norm[:, 1:]
    real = rest > 0
    mean = rest.mean(1)
    mean = torch.where(mean > 0, mean, torch.nan)
    with_sink = (direction[:, 1:] @ direction[:, 0, :, None])[..., 0].sum(1) / real.sum(1)
    with_sink = torch.where((norm[:, 0] > 0) & real.any(1), with_sink, torch.nan)
    n = real.sum(1).double()
    pairs = torch.where(n > 1, n * (n - 1), torch.nan)
    square = direction[:, 1:].sum(1).square().sum(1)
    spread = (rest - mean[:, None]).square().mean(1).sqrt()
    largest = torch.where(n > 1, _largest(direction[:, 1:]), torch.nan)
    return SinkStatistics(norm[:, 0] / mean, with_sink, spread / mean, largest, (square - n) / pairs)


def _largest(direction: Float64[Tensor, "G n d_v"]) -> Float64[Tensor, " G"]:
    """The largest |cos| of two, at most 1; 0 where there are no two."""
    best = direction.new_zeros(len(direction))
    for start in range(0, direction.shape[1], _ROWS):
        rows = direction[:, start : start + _ROWS]
        cosine = torch.bmm(rows, direction.transpose(1, 2)).abs_().tril_(start - 1)
        best = torch.maximum(best, cosine.amax((1, 2)))
    return best.clamp_max_(1)
