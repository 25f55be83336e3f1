"""Contribution weights entry by entry, summed and sifted one block of queries at a time, while it lies in the cache."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Float32, Int, Int64
from torch import Tensor

from tasks.kernels.edges import candidates, rank_candidates
from tasks.kernels.outputs import HeadOutputs
from tasks.kernels.scores import ScoreBlocks, reciprocal
from tasks.kernels.visibility import QueryBlock, query_blocks, visible_block


class EntrySums:
    """Row and column sums of the entries' scores, and the entries that may be among their rows' strongest.

    Undefined rows (‖o‖ = 0) add 0; which they are is kept beside the sums. Column sums leave the last query out: it
    predicts nothing.
    """

    def __init__(
        self,
        attention: Float[Tensor, "H T T"],
        outputs: HeadOutputs,
        n_edges: int,
        window: int | None,
        query_block: int,
    ) -> None:
        n_heads, n_tokens, _ = attention.shape
        self.attention, self.outputs, self.window = attention, outputs, window
        self.dead_row, self.dead_query = outputs.norm == 0, outputs.layer_norm == 0  # (H, T), (T,)
        self.any_dead = bool(self.dead_row.any())
        self.alpha_column = attention.new_zeros(n_heads, 2, n_tokens)  # Σ_i α, Σ_i α/‖o‖
        self.column = attention.new_zeros(4, n_heads, n_tokens)  # Σ_i of cw_intra, |cw_intra|, cw_inter, |cw_inter|
        self.row = attention.new_empty(3, n_heads, n_tokens)  # Σ_j of cw_intra, |cw_intra|, cw_inter
        self._n_edges, self._query_block = n_edges, query_block
        self._scores = ScoreBlocks(outputs, query_block)
        self._strength = attention.new_empty(n_heads * min(query_block, n_tokens) * n_tokens)
        self._query_weight = torch.stack((torch.ones_like(outputs.norm), reciprocal(outputs.norm)), 1)  # (H, 2, T)
        self._query_weight[:, :, -1] = 0
        self._above = attention.new_ones(query_block, query_block).triu(1)
        self._found: list[tuple[np.ndarray, ...]] = []

    def add(self, block: QueryBlock) -> None:
        """Take in the next block of queries."""
        rows, keys = slice(block.start, block.stop), slice(block.first_key, block.stop)
        alpha = self.attention[:, rows, keys]  # (H, q, K)
        predicting = min(block.stop, self.attention.shape[1] - 1) - block.start
        column = alpha.new_empty(4, alpha.shape[0], alpha.shape[2])

        entry = self._scores.intra(block).mul_(alpha)  # cw_intra
        strength = torch.abs(entry, out=self._strength[: entry.numel()].view_as(entry))
        row = [entry.sum(-1), strength.sum(-1)]
        torch.sum(entry[:, :predicting], 1, out=column[0])
        torch.sum(strength[:, :predicting], 1, out=column[1])
        kept = candidates(self._choosable(block, strength), self._n_edges)
        place, sizes = self._place(block, kept, entry), [t.numpy().reshape(-1)[kept] for t in (strength, entry)]

        entry = self._scores.inter(block).mul_(alpha)  # cw_inter, in the memory of cw_intra
        self._found.append((*place, *sizes, entry.numpy().reshape(-1)[kept]))
        row.append(entry.sum(-1))
        torch.sum(entry[:, :predicting], 1, out=column[2])
        torch.sum(entry.abs_()[:, :predicting], 1, out=column[3])

        self.column[:, :, keys] += column
        self.alpha_column[:, :, keys] += torch.bmm(self._query_weight[:, :, rows], alpha)
        torch.stack(row, out=self.row[:, :, rows])

    def _choosable(self, block: QueryBlock, strength: Float[Tensor, "H q K"]) -> Float[Tensor, "H q K"]:
        """|cw_intra|, negative at invisible keys (where it was 0) and in undefined rows."""
        if self.window is None:  # only the square of the block's own keys holds invisible ones
            q = strength.shape[1]
            strength[..., block.start :].sub_(self._above[:q, :q])
        else:
            strength.sub_((~visible_block(block, self.window)).to(strength.dtype))
        if self.any_dead:
            strength[self.dead_row[:, block.start : block.stop]] = -1
        return strength

    def _place(
        self, block: QueryBlock, kept: Int64[np.ndarray, " n"], entry: Float[Tensor, "H q K"]
    ) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"]]:
        """Row (block after block, in each by head and query) and key of the entries kept."""
        n_heads, _, n_keys = entry.shape
        row, key = np.divmod(kept.astype(np.int32) if entry.numel() < 2**31 else kept, n_keys)
        return row + n_heads * block.start, key + block.first_key

    def strongest(self) -> tuple[Int[Tensor, "H T k"], Float[Tensor, "H T k"], Float[Tensor, "H T k"]]:
        """Key, cw_intra and cw_inter of the k strongest entries of each row; key −1 and NaN where there are fewer."""
        row, key, strength, intra, inter = (np.concatenate(parts) for parts in zip(*self._found, strict=True))
        n_heads, n_tokens, k = *self.dead_row.shape, self._n_edges
        ranked = rank_candidates(row, strength, n_heads * n_tokens, k)
        place = np.empty((n_heads, n_tokens, k), np.int64)
        for block in query_blocks(n_tokens, self.window, self._query_block):
            part = ranked[n_heads * block.start : n_heads * block.stop]
            place[:, block.start : block.stop] = part.reshape(n_heads, -1, k)
        keys = torch.from_numpy(np.append(key, -1)[place])
        return keys.to(torch.int64), _taken(intra, place), _taken(inter, place)


def _taken(values: Float32[np.ndarray, " n"], place: Int64[np.ndarray, "H T k"]) -> Float[Tensor, "H T k"]:
    """Values at their places, NaN where there is none (place −1)."""
    return torch.from_numpy(np.append(values, np.float32(np.nan))[place])
