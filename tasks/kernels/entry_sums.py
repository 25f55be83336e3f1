"""Contribution weights entry by entry, summed and sifted one block of queries at a time, while it lies in the cache."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tasks.kernels.edges import strongest_keys
from tasks.kernels.outputs import HeadOutputs
from tasks.kernels.scores import ScoreBlocks, reciprocal
from tasks.kernels.visibility import QueryBlock, visible_block


class EntrySums:
    """Row and column sums of the entries' scores, and each row's strongest entries.

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
        self.n_edges = n_edges
        self.edge_key = torch.empty(n_heads, n_tokens, n_edges, dtype=torch.int64)  # −1 where a row has fewer
        self.edge = attention.new_empty(3, n_heads, n_tokens, n_edges)  # α, cw_intra, cw_inter
        self._scores = ScoreBlocks(outputs, query_block)
        self._query_weight = torch.stack((torch.ones_like(outputs.norm), reciprocal(outputs.norm)), 1)  # (H, 2, T)
        self._query_weight[:, :, -1] = 0

    def add(self, block: QueryBlock) -> None:
        """Take in the next block of queries."""
        rows, keys = slice(block.start, block.stop), slice(block.first_key, block.stop)
        alpha = self.attention[:, rows, keys]  # (H, q, K)
        predicting = min(block.stop, self.attention.shape[1] - 1) - block.start
        column, row = alpha.new_empty(4, alpha.shape[0], alpha.shape[2]), alpha.new_empty(3, *alpha.shape[:2])

        def add_up(entries: Tensor, at: int, row_at: int | None) -> None:
            torch.sum(entries[:, :predicting], 1, out=column[at])
            if row_at is not None:
                torch.sum(entries, -1, out=row[row_at])

        entry = self._scores.intra(block).mul_(alpha)  # cw_intra
        add_up(entry, 0, 0)
        chosen = strongest_keys(entry, self._hidden(block), self.n_edges)
        if self.any_dead:
            chosen[self.dead_row[:, rows]] = -1
        at = chosen.clamp_min(0)
        found = [alpha.gather(2, at), entry.gather(2, at)]
        add_up(entry.abs_(), 1, 1)

        entry = self._scores.inter(block).mul_(alpha)  # cw_inter, in the memory of cw_intra
        found.append(entry.gather(2, at))
        add_up(entry, 2, 2)
        add_up(entry.abs_(), 3, None)

        self.column[:, :, keys] += column
        self.row[:, :, rows] = row
        self.alpha_column[:, :, keys] += torch.bmm(self._query_weight[:, :, rows], alpha)
        self.edge_key[:, rows] = chosen + block.first_key * (chosen >= 0) if block.first_key else chosen
        torch.stack(found, out=self.edge[:, :, rows])

    def _hidden(self, block: QueryBlock) -> Bool[Tensor, "q n"]:
        """Which of the last n keys of the block a query does not see; without a window those are the block's own."""
        own = block.start if self.window is None else block.first_key
        return ~visible_block(QueryBlock(block.start, block.stop, own), self.window)
