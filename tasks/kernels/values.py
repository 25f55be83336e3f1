"""Value vectors of a document as geometry sees them: lengths, and how far any two of them agree in direction."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from tasks.kernels.visibility import CAUSAL, Visibility

_ROWS = 64
"""Rows of the cosines between all values taken at once: memory is that many rows, not T × T."""
_ROUNDING = 1e-12
"""Cosines are out by less than this; bounds made of them are widened by it."""


@dataclass(frozen=True)
class Values:
    """The values of one document and layer, in float64, by key/value head."""

    vector: Float64[Tensor, "G T d_v"]
    norm: Float64[Tensor, "G T"]
    """‖v_j‖."""

    @classmethod
    def of(cls, value: Float[Tensor, "T G d_v"]) -> Values:
        """From the values as the store gives them."""
        vector = value.transpose(0, 1).double().contiguous()
        return cls(vector, vector.norm(dim=-1))

    def directions(self) -> Float64[Tensor, "G T d_v"]:
        """Unit vectors; a value of length 0 stays 0, so that its cosine with any other is 0."""
        return self.vector / torch.where(self.norm > 0, self.norm, 1)[..., None]


@dataclass(frozen=True)
class Coherence:
    """What the certificate knows of the directions of the values that each query sees (methods.md §2)."""

    pairs: Float64[Tensor, "G T"]
    """κ: the largest |cos| between two of them other than the sink's, in [0, 1]; 0 where there are no two."""
    sink_low: Float64[Tensor, "G T"]
    """χ_lo: the least cosine of one of them with the sink's."""
    sink_high: Float64[Tensor, "G T"]
    """χ_hi: the largest."""


def coherence(values: Values, visibility: Visibility = CAUSAL) -> Coherence:
    """κ and [χ_lo, χ_hi] of every query, over the keys j ≥ 1 that it sees; widened by rounding.

    Of a query i and the first key a that it sees, κ = max over a ≤ j < k ≤ i of |cos(v_j, v_k)|: for each later key k
    the running maximum over j from the right, then over k from above; no window needs a search of its own. Both ends
    of χ are 0 where the query sees no key but the sink, and so is κ where it sees fewer than two others.
    """
    direction = values.directions()
    n_groups, n_tokens, _ = direction.shape
    first = visibility.first_keys(n_tokens)
    pairs = direction.new_zeros(n_groups, n_tokens)
    for g in range(n_groups):
        best = direction.new_zeros(1, n_tokens)
        for start in range(0, n_tokens, _ROWS):
            stop = min(start + _ROWS, n_tokens)
            cosine = (direction[g, start:stop] @ direction[g].T).abs_().tril_(start - 1)
            cosine[:, 0] = 0
            from_here = cosine.flip(1).cummax(1).values.flip(1)  # [k, a]: the largest over a ≤ j < k
            best = torch.cat((best, from_here)).cummax(0).values
            pairs[g, start:stop] = best[1:].gather(1, first[start:stop, None])[:, 0]
            best = best[-1:]
        if not visibility.causal:
            pairs[g] = pairs[g, -1:].clone()
    low, high = _sink_range(direction, visibility)
    return Coherence((pairs + _ROUNDING).clamp_max_(1), low, high)


def _sink_range(
    direction: Float64[Tensor, "G T d_v"], visibility: Visibility
) -> tuple[Float64[Tensor, "G T"], Float64[Tensor, "G T"]]:
    """The range of cos(v_0, v_j) over the keys 1 ≤ j that each query sees; where it does not see key 0 any will do."""
    cosine = (direction @ direction[:, 0, :, None])[..., 0]  # (G, T)
    if cosine.shape[1] == 1:
        return torch.zeros_like(cosine), torch.zeros_like(cosine)
    running = (cosine[:, 1:].cummin(1).values, cosine[:, 1:].cummax(1).values)
    low, high = (torch.cat((cosine.new_zeros(len(cosine), 1), x), 1) for x in running)
    if not visibility.causal:
        low, high = (x[:, -1:].expand_as(cosine).contiguous() for x in (low, high))
    return (low - _ROUNDING).clamp_min_(-1), (high + _ROUNDING).clamp_max_(1)
