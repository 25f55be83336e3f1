"""Contribution weights: how much each key's value is of what a head, and of what the layer, writes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tasks.kernels.entry_sums import EntrySums
from tasks.kernels.outputs import HeadOutputs
from tasks.kernels.scores import reciprocal
from tasks.kernels.visibility import CAUSAL, QUERY_BLOCK, Visibility

_FAINT = 1e-30
"""Attention below this has lost digits in float32 products."""


@dataclass(frozen=True)
class TokenScores:
    """Sums of each score of a key over the queries that see it and count; the mean divides by `n_queries`.

    Causal: keys j ≤ T−2, queries j ≤ i ≤ T−2, since the last position predicts nothing. Of an encoder, which predicts
    nothing at any position, all keys and all queries.
    """

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
    visibility: Visibility = CAUSAL,
    query_block: int = QUERY_BLOCK,
) -> Contributions:
    """Contribution weights of one document and layer, reduced to token scores, row sums and strongest edges.

    cw_intra[h,i,j] = α ⟨ṽ_j, o[h,i]⟩ / ‖o[h,i]‖² is the share of key j in what head h writes for query i (Σ_j = 1);
    cw_inter[h,i,j] = α ⟨ṽ[h,j], o[i]⟩ / ‖o[i]‖² its share in what the layer writes (Σ_h Σ_j = 1). A negative entry
    works against the sum. raw = α, vw = α ‖ṽ‖ and vwon = α ‖ṽ‖/‖o‖ are the older scores beside them.

    `attention` (H, T, T) is zero at the keys that `visibility` hides, so a window changes counts only; `outputs` is
    `head_outputs` of the same attention. A token score is the sum over the queries that see the key and count
    (`Visibility.counted`).
    NaN: where ‖o[h,i]‖ = 0 (for cw_inter ‖o[i]‖ = 0) every entry of the row is 0/0, hence its row sums and the token
    scores of the keys that it sees; a row with ‖o[h,i]‖ = 0 has no edges. Raises ValueError for edges < 1.
    Reference: Cunningham & Muca Cirone 2026, arXiv 2606.07604; vw: Kobayashi et al. 2020, arXiv 2004.10102.
    """
    if edges < 1:
        raise ValueError(f"expected at least one edge a row, got {edges}")
    sums = EntrySums(attention, outputs, edges, visibility, query_block)
    for block in visibility.blocks(attention.shape[1], query_block):
        sums.add(block)
    return Contributions(_token_scores(sums), _row_sums(sums), _edges(sums))


def _token_scores(sums: EntrySums) -> TokenScores:
    n, (first, last) = sums.counted, sums.visibility.seers(sums.outputs.norm.shape[1])
    raw, per_output = (x.contiguous() for x in sums.alpha_column[..., :n].unbind(1))
    intra, inter, intra_abs, inter_abs = (x.contiguous() for x in sums.column[..., :n].unbind(1))
    if sums.outputs.gate is None:
        norm = sums.outputs.value_norm[:, :n]
        vw, vwon = raw * norm, per_output * norm
    else:  # a key's length differs from query to query
        vw, vwon = (x.contiguous() for x in sums.length_column[..., :n].unbind(1))
    if sums.any_dead:
        undefined = _keys_seen_by(sums.dead_row, first, last)  # (H, n)
        for scores in (vwon, intra, intra_abs):
            scores[undefined] = torch.nan
    if bool(sums.dead_query.any()):
        undefined = _keys_seen_by(sums.dead_query[None], first, last)  # (1, n)
        for scores in (inter, inter_abs):
            scores[:, undefined[0]] = torch.nan
    return TokenScores(last - first, raw, vw, vwon, intra, intra_abs, inter, inter_abs)


def _keys_seen_by(
    queries: Bool[Tensor, "n T"], first: Int[Tensor, " K"], last: Int[Tensor, " K"]
) -> Bool[Tensor, "n K"]:
    """Keys that one of the queries given sees, of the queries [first, last) that see each key and count."""
    before = torch.nn.functional.pad(queries.cumsum(1), (1, 0))  # of the queries given, those before i: (n, T + 1)
    return before[:, last] > before[:, first]


def _row_sums(sums: EntrySums) -> RowSums:
    intra, inter, intra_abs = (x.contiguous() for x in sums.row.unbind(1))
    share = ((intra_abs - intra) / (2 * intra_abs)).clamp_min_(0)
    intra[sums.dead_row] = torch.nan
    share[sums.dead_row] = torch.nan
    inter[:, sums.dead_query] = torch.nan
    return RowSums(intra, inter, share)


def _edges(sums: EntrySums) -> Edges:
    """The factors of the strongest entries: cw = α · (‖ṽ‖/‖o‖) · cos."""
    o, keys = sums.outputs, sums.edge_key  # (H, T, k)
    absent, at = keys < 0, keys.clamp_min(0)
    alpha, intra, inter = (x.contiguous() for x in sums.edge.unbind(1))
    for values in (alpha, intra, inter):
        values[absent] = torch.nan
    length = o.value_norm.gather(1, at.flatten(1)).view_as(alpha) if o.gate is None else sums.edge_length
    relative = length * reciprocal(o.norm)[..., None]
    relative[absent] = torch.nan
    cosine = intra / (alpha * relative)
    faint = alpha < _FAINT
    if bool(faint.any()):  # the product may have lost its digits, or be 0: take the angle itself
        head, query, _ = faint.nonzero(as_tuple=True)
        value = o.value[head // o.group, at[faint]]
        cosine[faint] = (o.projected[head, query] * value).sum(-1) / (length[faint] * o.norm[head, query])
    inter[:, sums.dead_query] = torch.nan
    return Edges(keys, alpha, relative, cosine.clamp_(-1, 1), intra, inter)
