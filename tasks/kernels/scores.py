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

    ⟨ṽ_j, o[h,i]⟩ = (z G_h) · v_j and ⟨ṽ[h,j], o[i]⟩ = (o[i] W_O[h]ᵀ) · v_j; times α they are cw_intra and cw_inter.
    Rows with ‖o‖ = 0 come out as 0 and are the caller's to mark. One buffer serves every call: a result lasts until
    the next.
    """

    def __init__(self, outputs: HeadOutputs, block_size: int) -> None:
        n_heads, n_tokens, _ = outputs.projected.shape
        self._keys = outputs.value.transpose(1, 2)  # (H_kv, d_v, T)
        self._intra = (outputs.projected, reciprocal(outputs.norm).square_()[..., None])  # (H, T, d_v), (H, T, 1)
        by_layer = reciprocal(outputs.layer_norm).square_()[None, :, None]
        self._inter = (outputs.crossed.transpose(0, 1), by_layer)  # (H, T, d_v), (1, T, 1)
        self._buffer = outputs.norm.new_empty(2 * n_heads * min(block_size, n_tokens) * n_tokens)

    def intra(self, block: QueryBlock) -> Float[Tensor, "H q K"]:
        """⟨ṽ_j, o[h,i]⟩ / ‖o[h,i]‖² of the block's keys: (‖ṽ‖/‖o‖) cos(o, ṽ)."""
        return self._scores(block, self._intra)[:, 0]

    def both(self, block: QueryBlock) -> Float[Tensor, "H 2 q K"]:
        """⟨ṽ_j, o[h,i]⟩ / ‖o[h,i]‖² and ⟨ṽ[h,j], o[i]⟩ / ‖o[i]‖² of the block's keys."""
        return self._scores(block, self._intra, self._inter)

    def _scores(self, block: QueryBlock, *sides: tuple[Tensor, Tensor]) -> Float[Tensor, "H n q K"]:
        """One batched product of all sides of a block with the keys; heads that read one value share its packing."""
        rows, keys = block.rows, self._keys[..., block.keys]
        n_heads, _, d_value = sides[0][0].shape
        n_kv_heads, q, K = len(keys), block.stop - block.start, keys.shape[2]
        left = self._buffer.new_empty(n_heads, len(sides), q, d_value)
        for at, (side, scale) in enumerate(sides):
            torch.mul(side[:, rows], scale[:, rows], out=left[:, at])
        scores = self._buffer[: n_heads * len(sides) * q * K]
        torch.bmm(left.view(n_kv_heads, -1, d_value), keys, out=scores.view(n_kv_heads, -1, K))
        return scores.view(n_heads, len(sides), q, K)
