"""A gate that multiplies each head's output before the output projection: lengths of values as each query gates them.

Where z[h,i] = g[h,i] ⊙ Σ_j α v_j, the projected value of key j depends on the query: ṽ[h,i,j] = (g[h,i] ⊙ v_j) W_O[h].
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from tasks.kernels.visibility import QueryBlock

_COLUMNS = 16
"""Columns of the factor of G taken at once: the product of a block is then as large as that many blocks of scores."""


@dataclass(frozen=True)
class Gate:
    """The gate of a document's heads in one layer."""

    values: Float[Tensor, "H T d_v"]
    """g[h,i], as it multiplies the head's output."""
    factor: Float[Tensor, "H d_v r"]
    """F_h with F_h F_hᵀ = G_h."""

    @classmethod
    def of(cls, gate: Float[Tensor, "T H d_v"], gram: Float[Tensor, "H d_v d_v"]) -> Gate:
        """From the store's gate and G_h = W_O[h] W_O[h]ᵀ, whose eigenvalues below 0 are rounding."""
        size, direction = torch.linalg.eigh(gram.double())
        factor = (direction * size.clamp_min(0).sqrt()[:, None]).to(gram.dtype)
        return cls(gate.transpose(0, 1).contiguous(), factor)

    def lengths(self, read: Float[Tensor, "H T d_v"], block: QueryBlock) -> Float[Tensor, "H q K"]:
        """‖ṽ[h,i,j]‖ = ‖(g_i ⊙ v_j) F_h‖ for a block of queries and its keys, of the values that each head reads.

        ‖ṽ‖² = v_jᵀ (g_i g_iᵀ ∘ G_h) v_j as a sum of squares (nothing cancels), Σ_r ((g_i ⊙ F[:, r]) · v_j)²; 2 d_v²
        operations an entry.
        """
        rows, keys = self.values[:, block.rows], read[:, block.keys].transpose(1, 2)
        square = rows.new_zeros(len(rows), rows.shape[1], keys.shape[2])
        for columns in self.factor.split(_COLUMNS, dim=2):
            side = rows[:, :, None] * columns.transpose(1, 2)[:, None]  # (H, q, r, d_v)
            part = torch.bmm(side.flatten(1, 2), keys).square_()
            square += part.view(*side.shape[:3], -1).sum(2)
        return square.sqrt_()
