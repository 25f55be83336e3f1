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
    """Scores ⟨ṽ_j, o⟩/‖o‖² of one block of queries after the other, from d_v-wide products.

    ⟨ṽ_j, o[h,i]⟩ = (z G_h) · v_j and ⟨ṽ_j, o[i]⟩ = (o[i] W_O[h]ᵀ) · v_j; times α they are cw_intra and cw_inter.
    Rows with ‖o‖ = 0 come out as 0 and are the caller's to mark. One buffer serves every call: a result lasts until
    the next.
    """

    def __init__(self, outputs: HeadOutputs, block_size: int) -> None:
        n_heads, n_tokens, _ = outputs.projected.shape
        self._keys = outputs.value.transpose(1, 2)  # (H_kv, d_v, T)
        self._intra = (outputs.projected, reciprocal(outputs.norm).square_()[..., None])
        self._inter = (outputs.crossed.transpose(0, 1), reciprocal(outputs.layer_norm).square_()[:, None])
        self._buffer = outputs.norm.new_empty(n_heads * min(block_size, n_tokens) * n_tokens)

    def intra(self, block: QueryBlock) -> Float[Tensor, "H q K"]:
        """⟨ṽ_j, o[h,i]⟩ / ‖o[h,i]‖² of the block's keys: (‖ṽ‖/‖o‖) cos(o, ṽ)."""
        side, scale = self._intra  # (H, T, d_v), (H, T, 1)
        return self._product(side[:, block.start : block.stop] * scale[:, block.start : block.stop], block)

    def inter(self, block: QueryBlock) -> Float[Tensor, "H q K"]:
        """⟨ṽ[h,j], o[i]⟩ / ‖o[i]‖² of the block's keys."""
        side, scale = self._inter  # (H, T, d_v), (T, 1)
        return self._product(side[:, block.start : block.stop] * scale[block.start : block.stop], block)

    def _product(self, side: Float[Tensor, "H q d_v"], block: QueryBlock) -> Float[Tensor, "H q K"]:
        n_heads, q, d_value = side.shape
        keys = self._keys[..., block.first_key : block.stop]
        n_kv_heads, _, K = keys.shape
        scores = self._buffer[: n_heads * q * K]
        by_group = side.reshape(n_kv_heads, -1, d_value)  # the queries of all heads that read a key/value head
        torch.bmm(by_group, keys, out=scores.view(n_kv_heads, -1, K))
        return scores.view(n_heads, q, K)
