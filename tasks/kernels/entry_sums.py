"""Contribution weights entry by entry, summed and sifted one block of queries at a time, while it lies in the cache."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from tasks.kernels.edges import strongest_keys
from tasks.kernels.outputs import HeadOutputs
from tasks.kernels.scores import ScoreBlocks, reciprocal
from tasks.kernels.visibility import QueryBlock, Visibility


class EntrySums:
    """Row and column sums of the entries' scores, and each row's strongest entries.

    Undefined rows (‖o‖ = 0) add 0; which they are is kept beside the sums. Column sums are over the
    queries that count: all but the last, which predicts nothing, or all of an encoder's.
    """

    def __init__(
        self,
        attention: Float[Tensor, "H T T"],
        outputs: HeadOutputs,
        n_edges: int,
        visibility: Visibility,
        query_block: int,
    ) -> None:
        n_heads, n_tokens, _ = attention.shape
        self.attention, self.outputs, self.visibility = attention, outputs, visibility
        self.counted = visibility.counted(n_tokens)
        self.dead_row, self.dead_query = outputs.norm == 0, outputs.layer_norm == 0  # (H, T), (T,)
        self.any_dead = bool(self.dead_row.any())
        self.alpha_column = attention.new_zeros(n_heads, 2, n_tokens)  # Σ_i α, Σ_i α/‖o‖
        gated = outputs.gate is not None
        self.length_column = attention.new_zeros(n_heads, 2, n_tokens if gated else 0)  # the same with α ‖ṽ‖
        self.edge_length = attention.new_empty(n_heads, n_tokens, n_edges if gated else 0)  # ‖ṽ‖
        self.column = attention.new_zeros(n_heads, 4, n_tokens)  # Σ_i of cw_intra, cw_inter, |cw_intra|, |cw_inter|
        self.row = attention.new_empty(n_heads, 3, n_tokens)  # Σ_j of cw_intra, cw_inter, |cw_intra|
        self.n_edges = n_edges
        self.edge_key = torch.empty(n_heads, n_tokens, n_edges, dtype=torch.int64)  # −1 where a row has fewer
        self.edge = attention.new_empty(n_heads, 3, n_tokens, n_edges)  # α, cw_intra, cw_inter
        self._per_query = torch.stack((torch.ones_like(outputs.norm), reciprocal(outputs.norm)), 1)  # (H, 2, T)
        self._per_query[:, :, self.counted :] = 0
        self._scores = ScoreBlocks(outputs, query_block)

    def add(self, block: QueryBlock) -> None:
        """Take in the next block of queries. Few steps: on small blocks each costs as much as what it computes."""
        rows, keys = block.rows, block.keys
        counting = min(block.stop, self.counted) - block.start
        alpha = self.attention[:, rows, keys]  # (H, q, K)
        self.alpha_column[:, :, keys].add_(torch.bmm(self._per_query[:, :, rows], alpha))
        entry = self._scores.both(block).mul_(alpha[:, None])  # cw_intra, cw_inter (H, 2, q, K)
        counted, column = entry[:, :, :counting], self.column[:, :, keys]
        column[:, :2].add_(counted.sum(2))
        self.row[:, :2, rows] = entry.sum(-1)

        chosen = strongest_keys(entry[:, 0], self.visibility.hidden_last(block, self.attention.shape[1]), self.n_edges)
        if self.any_dead:
            chosen[self.dead_row[:, rows]] = -1
        at = chosen.clamp_min(0)
        self.edge[:, 0, rows] = alpha.gather(2, at)
        self.edge[:, 1:, rows] = entry.gather(3, at[:, None].expand(-1, 2, -1, -1))
        if self.outputs.gate is not None:
            length = self.outputs.lengths(block)
            self.length_column[:, :, keys].add_(torch.bmm(self._per_query[:, :, rows], alpha * length))
            self.edge_length[:, rows] = length.gather(2, at)
        self.edge_key[:, rows] = torch.where(chosen < 0, -1, chosen + block.first_key) if block.first_key else chosen

        entry.abs_()
        column[:, 2:].add_(counted.sum(2))
        self.row[:, 2, rows] = entry[:, 0].sum(-1)
