"""Contribution weights: how much each key's value is of what a head, and of what the layer, writes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tasks.kernels.edges import candidates, rank_candidates
from tasks.kernels.outputs import HeadOutputs
from tasks.kernels.scores import ScoreBlocks, reciprocal
from tasks.kernels.visibility import QUERY_BLOCK, QueryBlock, queries_seeing, query_blocks, visible_block

_FAINT = 1e-30
"""Attention below this has lost digits in float32 products."""


@dataclass(frozen=True)
class TokenScores:
    """Sums of each score of key j ≤ T−2 over the queries j ≤ i ≤ T−2 that see it; the mean divides by `n_queries`."""

    n_queries: Int[Tensor, " K"]
    raw: Float[Tensor, "H K"]
    vw: Float[Tensor, "H K"]
    vwon: Float[Tensor, "H K"]
    cw_intra: Float[Tensor, "H K"]
    cw_intra_abs: Float[Tensor, "H K"]
    cw_inter: Float[Tensor, "H K"]
    cw_inter_abs: Float[Tensor, "H K"]


@dataclass(frozen=True)
class RowSums:
    """What each query's entries add up to, added from the entries."""

    cw_intra: Float[Tensor, "H T"]
    """Σ_j cw_intra: 1 up to rounding."""
    cw_inter: Float[Tensor, "H T"]
    """Σ_j cw_inter of this head: over the heads they make 1 up to rounding."""
    negative_share: Float[Tensor, "H T"]
    """Σ|negative cw_intra| / Σ|cw_intra|, in [0, ½)."""


@dataclass(frozen=True)
class Edges:
    """The k entries of largest |cw_intra| of each query row, strongest first; key −1 and NaN where there are fewer."""

    key: Int[Tensor, "H T k"]
    alpha: Float[Tensor, "H T k"]
    relative_norm: Float[Tensor, "H T k"]
    """‖ṽ[h,j]‖ / ‖o[h,i]‖ ≥ 0."""
    cosine: Float[Tensor, "H T k"]
    """cos(ṽ[h,j], o[h,i]) in [−1, 1]; NaN where ‖ṽ‖ = 0."""
    cw_intra: Float[Tensor, "H T k"]
    cw_inter: Float[Tensor, "H T k"]


@dataclass(frozen=True)
class Contributions:
    tokens: TokenScores
    rows: RowSums
    edges: Edges


def contributions(
    attention: Float[Tensor, "H T T"],
    outputs: HeadOutputs,
    *,
    edges: int = 8,
    window: int | None = None,
    query_block: int = QUERY_BLOCK,
) -> Contributions:
    """Contribution weights of one document and layer, reduced to token scores, row sums and strongest edges.

    cw_intra[h,i,j] = α ⟨ṽ_j, o[h,i]⟩ / ‖o[h,i]‖² is the share of key j in what head h writes for query i (Σ_j = 1);
    cw_inter[h,i,j] = α ⟨ṽ[h,j], o[i]⟩ / ‖o[i]‖² its share in what the layer writes (Σ_h Σ_j = 1). A negative entry
    works against the sum. raw = α, vw = α ‖ṽ‖ and vwon = α ‖ṽ‖/‖o‖ are the older scores beside them.

    `attention` (H, T, T) is zero at invisible keys; `outputs` is `head_outputs` of the same attention; `window` is the
    layer's sliding window in keys: since attention outside it is zero, it changes counts only. A token score is the
    sum over the queries that see the key and predict a token (i ≤ T−2).
    NaN: where ‖o[h,i]‖ = 0 (for cw_inter ‖o[i]‖ = 0) every entry of the row is 0/0, hence its row sums and the token
    scores of the keys that it sees; a row with ‖o[h,i]‖ = 0 has no edges. Raises ValueError for edges < 1.
    Reference: Cunningham & Muca Cirone 2026, arXiv 2606.07604; vw: Kobayashi et al. 2020, arXiv 2004.10102.
    """
    if edges < 1:
        raise ValueError(f"expected at least one edge a row, got {edges}")
    work = _Accumulator(attention, outputs, edges, window, query_block)
    for block in query_blocks(attention.shape[1], window, query_block):
        work.add(block)
    return Contributions(work.token_scores(), work.row_sums(), work.edges())


class _Accumulator:
    """Adds the entries of one block of queries after the other, each while it lies in the cache."""

    def __init__(
        self, attention: Tensor, outputs: HeadOutputs, n_edges: int, window: int | None, query_block: int
    ) -> None:
        n_heads, n_tokens, _ = attention.shape
        self.attention, self.outputs, self.n_edges = attention, outputs, n_edges
        self.window, self.query_block = window, query_block
        self.scores = ScoreBlocks(outputs, query_block)
        self.strength = attention.new_empty(n_heads * min(query_block, n_tokens) * n_tokens)
        self.dead_row, self.dead_query = outputs.norm == 0, outputs.layer_norm == 0  # (H, T), (T,)
        self.any_dead = bool(self.dead_row.any())
        self.query_weight = torch.stack((torch.ones_like(outputs.norm), reciprocal(outputs.norm)), 1)
        self.query_weight[:, :, -1] = 0  # the last position predicts nothing
        self.alpha_column = attention.new_zeros(n_heads, 2, n_tokens)  # Σ_i α, Σ_i α/‖o‖
        self.column = attention.new_zeros(4, n_heads, n_tokens)  # Σ_i of cw_intra, |cw_intra|, cw_inter, |cw_inter|
        self.row = attention.new_empty(3, n_heads, n_tokens)  # Σ_j of cw_intra, |cw_intra|, cw_inter
        self.found: list[tuple[np.ndarray, ...]] = []

    def add(self, block: QueryBlock) -> None:
        rows, keys = slice(block.start, block.stop), slice(block.first_key, block.stop)
        predicting = min(block.stop, self.attention.shape[1] - 1) - block.start
        alpha = self.attention[:, rows, keys]
        self.alpha_column[:, :, keys] += torch.bmm(self.query_weight[:, :, rows], alpha)

        entry = self.scores.intra(block).mul_(alpha)  # cw_intra (H, q, K)
        strength = torch.abs(entry, out=self.strength[: entry.numel()].view(entry.shape))
        for at, values in ((0, entry), (1, strength)):
            self.row[at, :, rows] = values.sum(-1)
            self.column[at, :, keys] += values[:, :predicting].sum(1)
        kept = self._candidates(block, strength)
        intra, size = entry.numpy().reshape(-1)[kept], strength.numpy().reshape(-1)[kept]

        entry = self.scores.inter(block).mul_(alpha)  # cw_inter, over the same buffer
        self.found.append((*self._place(block, kept, entry.shape), size, intra, entry.numpy().reshape(-1)[kept]))
        self.row[2, :, rows] = entry.sum(-1)
        self.column[2, :, keys] += entry[:, :predicting].sum(1)
        self.column[3, :, keys] += entry.abs_()[:, :predicting].sum(1)

    def _candidates(self, block: QueryBlock, strength: Tensor) -> np.ndarray:
        """Flat indices of what may be an edge; invisible keys and undefined rows are told apart from zeros by −1."""
        if self.window is None:
            triangle = QueryBlock(block.start, block.stop, block.start)
            strength[..., block.start :].masked_fill_(~visible_block(triangle, None), -1)
        else:
            strength.masked_fill_(~visible_block(block, self.window), -1)
        if self.any_dead:
            strength.masked_fill_(self.dead_row[:, block.start : block.stop, None], -1)
        return candidates(strength, self.n_edges)

    def _place(self, block: QueryBlock, kept: np.ndarray, shape: torch.Size) -> tuple[np.ndarray, np.ndarray]:
        """Row (blocks one after the other, in each (head, query)) and key of each candidate."""
        n_heads, q, K = shape
        row, key = np.divmod(kept.astype(np.int32) if n_heads * q * K < 2**31 else kept, K)
        return row + n_heads * block.start, key + block.first_key

    def token_scores(self) -> TokenScores:
        norm = self.outputs.value_norm[:, :-1]
        raw, per_output = self.alpha_column[:, 0, :-1], self.alpha_column[:, 1, :-1]
        intra, intra_abs, inter, inter_abs = self.column[..., :-1].clone()
        vwon = per_output * norm
        if self.any_dead:
            for scores in (vwon, intra, intra_abs):
                scores[self._sees(self.dead_row)] = torch.nan
        for scores in (inter, inter_abs):
            scores[:, self._sees(self.dead_query[None])[0]] = torch.nan
        seen = queries_seeing(self.attention.shape[1], self.window)
        return TokenScores(seen, raw, raw * norm, vwon, intra, intra_abs, inter, inter_abs)

    def _sees(self, undefined: Bool[Tensor, "n T"]) -> Bool[Tensor, "n K"]:
        """Keys j ≤ T−2 that an undefined query i ≤ T−2 sees."""
        T = undefined.shape[1]
        before = torch.nn.functional.pad(undefined[:, :-1].cumsum(1), (1, 0))  # undefined queries before i: (n, T)
        last = (
            torch.full((T - 1,), T - 1)
            if self.window is None
            else (torch.arange(T - 1) + self.window).clamp_max_(T - 1)
        )
        return before[:, last] > before[:, :-1]

    def row_sums(self) -> RowSums:
        intra, intra_abs, inter = self.row
        share = ((intra_abs - intra) / (2 * intra_abs)).clamp_min_(0)
        intra[self.dead_row] = torch.nan
        share[self.dead_row] = torch.nan
        inter[:, self.dead_query] = torch.nan
        return RowSums(intra, inter, share)

    def edges(self) -> Edges:
        row, key, size, intra, inter = (np.concatenate(parts) for parts in zip(*self.found, strict=True))
        n_heads, n_tokens, _ = self.attention.shape
        ranked = rank_candidates(row, size, n_heads * n_tokens, self.n_edges)
        place = np.empty((n_heads, n_tokens, self.n_edges), np.int64)
        for block in query_blocks(n_tokens, self.window, self.query_block):
            part = ranked[n_heads * block.start : n_heads * block.stop]
            place[:, block.start : block.stop] = part.reshape(n_heads, -1, self.n_edges)
        keys = torch.from_numpy(np.append(key, -1)[place])
        return self._describe(keys, _taken(intra, place), _taken(inter, place))

    def _describe(self, keys: Tensor, intra: Tensor, inter: Tensor) -> Edges:
        """The factors of the chosen entries: cw = α · (‖ṽ‖/‖o‖) · cos."""
        o, absent = self.outputs, keys < 0
        at = keys.clamp_min(0)
        alpha = self.attention.gather(2, at).masked_fill_(absent, torch.nan)
        length = o.value_norm[:, None].expand(-1, at.shape[1], -1).gather(2, at)
        relative = (length * reciprocal(o.norm)[..., None]).masked_fill_(absent, torch.nan)
        cosine = intra / (alpha * relative)
        faint = alpha < _FAINT  # the product may have lost its digits, or be 0: take the angle itself
        if bool(faint.any()):
            head, query, _ = faint.nonzero(as_tuple=True)
            value = o.value[head // (o.norm.shape[0] // o.value.shape[0]), at[faint]]
            dot = (o.projected[head, query] * value).sum(-1)
            cosine[faint] = dot / (length[faint] * o.norm[head, query])
        inter[:, self.dead_query] = torch.nan
        return Edges(keys, alpha, relative, cosine.clamp_(-1, 1), intra, inter)


def _taken(values: np.ndarray, place: np.ndarray) -> Tensor:
    """Values at their places, NaN where there is none (place −1)."""
    return torch.from_numpy(np.append(values, np.float32(np.nan))[place])
