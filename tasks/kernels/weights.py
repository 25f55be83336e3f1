"""The output projection of a layer, as the two matrices that every contribution score needs of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class LayerWeights:
    """Inner products of a layer's projected values, taken before the projection.

    With ṽ = v W_O[h], inner products in the model's width D become products in the head's width d_v:
    ⟨x W_O[h], y W_O[h]⟩ = x G_h yᵀ and ⟨x W_O[h], y W_O[k]⟩ = x M_hk yᵀ. Computed once per layer for all documents.
    """

    gram: Float[Tensor, "H d_v d_v"]
    """G_h = W_O[h] W_O[h]ᵀ."""
    cross: Float[Tensor, "H*d_v H*d_v"]
    """M = W W ᵀ of the heads' slices stacked; its diagonal blocks are G_h."""

    @classmethod
    def of(cls, projection: Float[Tensor, "H d_v D"]) -> LayerWeights:
        """From the heads' slices of W_O (row-vector convention y = x W_O[h])."""
        n_heads, d_value, _ = projection.shape
        stacked = projection.reshape(n_heads * d_value, -1).float()
        cross = stacked @ stacked.T
        blocks = cross.view(n_heads, d_value, n_heads, d_value)
        gram = torch.stack([blocks[h, :, h] for h in range(n_heads)])
        return cls(gram=gram, cross=cross)
