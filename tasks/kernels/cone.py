"""Semantic cone: how nearly the outputs of a head point one way, with the sink's value in them and without."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tasks.kernels.outputs import HeadOutputs, root
from tasks.kernels.sink import first_values
from tasks.kernels.weights import LayerWeights

ROW_GROUPS = ("low_norm", "rest")
SINKS = ("kept", "zeroed")


@dataclass(frozen=True)
class SemanticCone:
    """Per head, row group (low_norm, rest) and sink value (kept, zeroed)."""

    n: Int[Tensor, "H 2 2"]
    """Queries whose output has a direction."""
    cosine: Float[Tensor, "H 2 2"]
    """Mean pairwise cosine in [−1/(n−1), 1], float64; NaN for n < 2."""


def semantic_cone(outputs: HeadOutputs, weights: LayerWeights) -> SemanticCone:
    """Mean cosine between the outputs of two queries i ≥ 1 of a document.

    With unit vectors ô = o/‖o‖: Σ_{i≠k} ⟨ô_i, ô_k⟩ / (n(n−1)) = (‖Σ ô‖² − n) / (n(n−1)), taken before the projection
    through G_h in float64. 1: all outputs point one way. Row groups are the ⌊n/5⌋ rows with the smallest ‖o‖, sink
    kept (ties to the earlier query), and the rest; rows with ‖o‖ = 0 are in neither. Zeroed: ṽ_0 := 0 with α kept,
    which leaves the tail; rows whose tail is 0 have no direction and drop out of `zeroed` only.
    Reference: Cunningham & Muca Cirone 2026, arXiv 2606.07604.
    """
    gram = weights.gram.double()
    tail = outputs.tail[:, 1:].double()  # (H, T−1, d_v)
    kept = torch.addcmul(tail, outputs.sink_rate[:, 1:, None].double(), first_values(outputs, slice(1, None)).double())
    groups = _row_groups(outputs.norm[:, 1:])  # (H, 2, T−1)
    pairs = [_pairwise(vectors, gram, groups) for vectors in (kept, tail)]
    return SemanticCone(torch.stack([n for n, _ in pairs], -1), torch.stack([c for _, c in pairs], -1))


def _row_groups(norm: Float[Tensor, "H n"]) -> Bool[Tensor, "H 2 n"]:
    """Rows with the smallest norms, a fifth of those above 0, and the rest of those."""
    defined = norm > 0
    rank = torch.where(defined, norm, torch.inf).argsort(dim=-1, stable=True).argsort(dim=-1)
    low = defined & (rank < defined.sum(-1, keepdim=True) // 5)
    return torch.stack((low, defined & ~low), 1)


def _pairwise(
    vectors: Float[Tensor, "H n d_v"], gram: Float[Tensor, "H d_v d_v"], groups: Bool[Tensor, "H 2 n"]
) -> tuple[Int[Tensor, "H 2"], Float[Tensor, "H 2"]]:
    norm = root((torch.bmm(vectors, gram) * vectors).sum(-1))  # (H, n)
    counted = groups & (norm > 0)[:, None]
    n = counted.sum(-1)
    unit = torch.where(norm > 0, 1 / norm, 0)[:, None] * counted  # (H, 2, n)
    total = torch.bmm(unit, vectors)  # Σ ô before the projection (H, 2, d_v)
    square = (torch.bmm(total, gram) * total).sum(-1)
    return n, torch.where(n > 1, (square - n) / (n * (n - 1)), torch.nan)
