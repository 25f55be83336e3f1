"""The two contribution scores of every entry, one block of queries at a time."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from tasks.kernels.outputs import HeadOutputs
from tasks.kernels.visibility import QueryBlock


def reciprocal(norm: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
    """1/‖·‖, and 0 for a vector of length 0, whose entries the caller then marks as undefined."""
    return torch.where(norm > 0, 1 / norm, 0)


class ScoreBlocks:
    """cos-scaled scores ⟨ṽ_j, o⟩/‖o‖² of a block of queries, from d_v-wide products.

    ⟨ṽ_j, o[h,i]⟩ = (z G_h) · v_j and ⟨ṽ_j, o[i]⟩ = (o[i] W_O[h]ᵀ) · v_j; times α they are cw_intra and cw_inter.
    Rows with ‖o‖ = 0 come out as 0 and are the caller's to mark. One buffer serves every call: a result lasts until
    the next.
    """

    def __init__(self, outputs: HeadOutputs, block_size: int) -> None:
        self._outputs = outputs
        self._intra = reciprocal(outputs.norm).square_()[..., None]  # (H, T, 1)
        self._inter = reciprocal(outputs.layer_norm).square_()[:, None]  # (T, 1)
        n_heads, n_tokens, d_value = outputs.projected.shape
        self._side = outputs.norm.new_empty(n_heads * min(block_size, n_tokens) * d_value)
        self._buffer = outputs.norm.new_empty(n_heads * min(block_size, n_tokens) * n_tokens)

    def intra(self, block: QueryBlock) -> Float[Tensor, "H q K"]:
        """⟨ṽ_j, o[h,i]⟩ / ‖o[h,i]‖² of the block's keys: (‖ṽ‖/‖o‖) cos(o, ṽ)."""
        rows = slice(block.start, block.stop)
        return self._product(self._outputs.projected[:, rows], self._intra[:, rows], block)

    def inter(self, block: QueryBlock) -> Float[Tensor, "H q K"]:
        """⟨ṽ[h,j], o[i]⟩ / ‖o[i]‖² of the block's keys."""
        rows = slice(block.start, block.stop)
        return self._product(self._outputs.crossed[rows].transpose(0, 1), self._inter[rows], block)

    def _product(
        self, side: Float[Tensor, "H q d_v"], scale: Float[Tensor, "*axes"], block: QueryBlock
    ) -> Float[Tensor, "H q K"]:
        n_heads, q, d_value = side.shape
        keys = self._outputs.value[:, block.first_key : block.stop].transpose(1, 2)  # (H_kv, d_v, K)
        n_kv_heads, _, K = keys.shape
        left = torch.mul(side, scale, out=self._side[: side.numel()].view(side.shape))
        scores = self._buffer[: n_heads * q * K]
        torch.bmm(left.view(n_kv_heads, -1, d_value), keys, out=scores.view(n_kv_heads, -1, K))
        return scores.view(n_heads, q, K)
