"""Scores of a whole layer's entries (i, j), its heads taken together: the baselines of contribution weights.

All of them work on tiles of queries and keys, so that no array is as large as T × T × D.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tasks.kernels.outputs import read_by_query_heads, weighted_sums
from tasks.kernels.visibility import CAUSAL, QUERY_BLOCK, QueryBlock, Visibility

_TILE = 1 << 18
"""Numbers in a tile of queries × keys × D: 1 MiB of float32, which stays in a core's second-level cache."""

Where = Literal["output", "sum"]


@dataclass(frozen=True)
class Linearised:
    """A norm after attention, taken as linear with its scale held at what the real vector gives.

    norm(y) = w ⊙ (y − mean(y)) / √(var(y) + ε) + b, or without the mean w ⊙ y / √(mean(y²) + ε) + b. With the scale
    held, the first part is linear in y, and parts of y have their share of it; b belongs to none of them.
    """

    where: Where
    """output: on attention's output, before the residual is added | sum: on residual + output."""
    centres: bool
    """Whether the mean is subtracted (LayerNorm) or not (RMSNorm)."""
    weight: Float[Tensor, " D"]
    """w, as the output is multiplied with it (Gemma's is 1 + the parameter)."""
    eps: float

    def scale(self, real: Float[Tensor, "*n D"]) -> Float[Tensor, "*n 1"]:
        """√(var + ε) or √(mean square + ε) of real vectors, > 0 with ε > 0."""
        centred = real - real.mean(-1, keepdim=True) if self.centres else real
        return (centred.square().mean(-1, keepdim=True) + self.eps).sqrt()

    def unscaled(self, vectors: Float[Tensor, "*n D"]) -> Float[Tensor, "*n D"]:
        """The linear part before the division by the scale: w ⊙ (y − mean(y)), or w ⊙ y."""
        centred = vectors - vectors.mean(-1, keepdim=True) if self.centres else vectors
        return centred * self.weight


def kobayashi_norms(
    attention: Float[Tensor, "H T T"],
    value: Float[Tensor, "T H_kv d_v"],
    projection: Float[Tensor, "H d_v D"],
    *,
    gate: Float[Tensor, "T H d_v"] | None = None,
    visibility: Visibility = CAUSAL,
) -> Float[Tensor, "T T"]:
    """‖Σ_h α[h,i,j] ṽ[h,j]‖: the length of what key j adds to the layer's output for query i.

    Through each key's H × H Gram matrix Γ_j[h,k] = ⟨ṽ_hj, ṽ_kj⟩ = (F_j F_jᵀ)[h,k]: ‖Σ_h α ṽ‖² = ‖α_ij F_j‖², a sum of
    squares, so heads that cancel leave no negative number. With a gate ṽ depends on the query, and the vectors
    themselves are made. ≥ 0, in the units of the residual stream; 0 where the query does not see the key; float32.
    Raises ValueError where query heads do not divide over the key/value heads.
    Reference: Kobayashi et al. 2020, arXiv 2004.10102; 2021, arXiv 2109.07152.
    """
    n_heads, n_tokens, _ = attention.shape
    read = read_by_query_heads(value.transpose(0, 1), n_heads)  # (H, T, d_v)
    norms = attention.new_zeros(n_tokens, n_tokens, dtype=torch.float32)
    if gate is not None:
        for tile, terms in _terms(attention, read, projection, gate, visibility):
            norms[tile.rows, tile.keys] = terms.norm(dim=-1).T
    else:
        for keys in range(0, n_tokens, QUERY_BLOCK):
            at = slice(keys, min(keys + QUERY_BLOCK, n_tokens))
            factor = _gram_factor(torch.bmm(read[:, at], projection).transpose(0, 1))  # (K, H, H)
            alpha = attention[:, :, at].permute(2, 1, 0).contiguous()  # (K, T, H)
            norms[:, at] = torch.bmm(alpha, factor).norm(dim=-1).T
    return norms.masked_fill_(~_seen(n_tokens, visibility), 0)


def alti(
    attention: Float[Tensor, "H T T"],
    value: Float[Tensor, "T H_kv d_v"],
    projection: Float[Tensor, "H d_v D"],
    residual: Float[Tensor, "T D"],
    *,
    bias: Float[Tensor, " D"] | None,
    linear: Linearised | None,
    gate: Float[Tensor, "T H d_v"] | None = None,
    visibility: Visibility = CAUSAL,
) -> Float[Tensor, "T T"]:
    """How much closer key j brings query i to what attention and residual make of it, as a share of the row.

    T_ij = Σ_h α ṽ + [i=j] x_i, linearised through the norm after it, y_i = Σ_j T_ij;
    score max(0, ‖y_i‖₁ − ‖y_i − T_ij‖₁), rows divided by their sum. `residual` is x, what attention's output is added
    to; `bias` W_O's own, which counts towards the norm's scale and to no T_ij. A norm of the `sum` is of all of T_ij,
    one of the `output` of Σ_h α ṽ alone.
    In [0, 1], rows sum to 1; 0 where the query does not see the key; NaN at the keys it sees where the sum is 0;
    float32. Raises ValueError where query heads do not divide over the key/value heads.
    Reference: Ferrando et al. 2022, arXiv 2203.04212, eqs. 6–10.
    """
    n_heads, n_tokens, _ = attention.shape
    read = read_by_query_heads(value.transpose(0, 1), n_heads)  # (H, T, d_v)
    mixed = weighted_sums(attention, read, visibility=visibility, query_block=QUERY_BLOCK)  # z (H, T, d_v)
    if gate is not None:
        mixed *= gate.transpose(0, 1)
    output = _projected(mixed, projection)  # o (T, D)
    own = residual  # what [i=j] x_i becomes
    if linear is not None:  # linear in T: into W_O go weight and mean, into α the scale
        real = output if bias is None else output + bias
        scale = linear.scale(real + residual if linear.where == "sum" else real)  # (T, 1)
        projection = linear.unscaled(projection)
        attention = attention / scale
        output = linear.unscaled(output) / scale
        if linear.where == "sum":
            own = linear.unscaled(residual) / scale
    whole = output + own  # y (T, D)
    closer = attention.new_zeros(n_tokens, n_tokens, dtype=torch.float32)
    for tile, terms in _terms(attention, read, projection, gate, visibility):
        _add_own(terms, tile, own)
        closer[tile.rows, tile.keys] = _closer(terms, whole[tile.rows]).T
    seen = _seen(n_tokens, visibility)
    closer.clamp_(min=0).masked_fill_(~seen, 0)
    return (closer / closer.sum(-1, keepdim=True)).masked_fill_(~seen, 0)


def rollout(attention: Float[Tensor, "H T T"], below: Float[Tensor, "T T"] | None) -> Float[Tensor, "T T"]:
    """Attention followed from this layer down to the tokens: R_l = (½ mean_h α + ½ I) R_{l−1}, R_{−1} = I.

    `below` is R_{l−1}, None for the first layer. Where a learned sink, or a part of the attention that is hidden, makes
    a row of α sum to less than 1, the row of ½ mean α + ½ I is divided by its sum, so that every row of R sums to 1;
    it is the only score that does. In [0, 1]; 0 where nothing flows; float32.
    Reference: Abnar & Zuidema 2020, arXiv 2005.00928.
    """
    mixed = attention.mean(0, dtype=torch.float64).div_(2)
    mixed.diagonal().add_(0.5)
    mixed /= mixed.sum(-1, keepdim=True)
    return (mixed if below is None else mixed @ below.double()).float()


def _projected(mixed: Float[Tensor, "H T d_v"], projection: Float[Tensor, "H d_v D"]) -> Float[Tensor, "T D"]:
    """Σ_h z[h] W_O[h], as one product."""
    return mixed.transpose(0, 1).flatten(1) @ projection.flatten(0, 1)


def _gram_factor(projected: Float[Tensor, "K H D"]) -> Float[Tensor, "K H H"]:
    """F with F Fᵀ = ṽ ṽᵀ of each key, through float64, as a square has half the digits; below 0 is rounding."""
    gram = torch.bmm(projected.double(), projected.double().transpose(1, 2))
    size, direction = torch.linalg.eigh(gram)
    return (direction * size.clamp_min(0).sqrt()[:, None]).float()


def _terms(
    attention: Float[Tensor, "H T T"],
    read: Float[Tensor, "H T d_v"],
    projection: Float[Tensor, "H d_v D"],
    gate: Float[Tensor, "T H d_v"] | None,
    visibility: Visibility,
) -> Iterator[tuple[QueryBlock, Float[Tensor, "K q D"]]]:
    """Σ_h α ṽ of every visible entry, one tile of queries and keys after the other, keys first; the caller's to change.

    A tile may hold entries that its query does not see, whose α is 0.
    """
    n_tokens, widest = attention.shape[1], max(projection.shape[2], 0 if gate is None else projection[..., 0].numel())
    side = max(8, math.isqrt(_TILE // widest))
    for first in range(0, n_tokens, side):
        last = min(first + side, n_tokens)
        projected = None  # ṽ of these keys (K, H, D)
        if gate is None:
            projected = torch.bmm(read[:, first:last], projection).transpose(0, 1).contiguous()
        for tile in visibility.blocks(n_tokens, side):
            if tile.last_key <= first or tile.first_key >= last:
                continue
            at = QueryBlock(tile.start, tile.stop, first, last)
            alpha = attention[:, at.rows, at.keys].permute(2, 1, 0)  # (K, q, H)
            if projected is not None:
                yield at, torch.bmm(alpha, projected)
            elif gate is not None:
                gated = gate[None, at.rows] * read[:, None, at.keys].permute(2, 1, 0, 3)  # (K, q, H, d_v)
                gated.mul_(alpha[..., None])
                yield at, gated.flatten(2) @ projection.flatten(0, 1)


def _add_own(terms: Float[Tensor, "K q D"], tile: QueryBlock, own: Float[Tensor, "T D"]) -> None:
    """[i=j] x_i, on the diagonal of a tile: keys and queries are cut at the same places."""
    if tile.start == tile.first_key:
        at = torch.arange(tile.stop - tile.start)
        terms[at, at] += own[tile.rows]


def _closer(terms: Float[Tensor, "K q D"], whole: Float[Tensor, "q D"]) -> Float[Tensor, "K q"]:
    """‖y‖₁ − ‖y − T‖₁ of each entry, Σ_d min(t, 2|y| − t) with t = T sign(y): nothing large is subtracted from
    something large, so a small part of a long y keeps its digits. `terms` is used up."""
    terms.mul_(torch.copysign(torch.ones_like(whole), whole))
    beyond = 2 * whole.abs() - terms
    return torch.minimum(terms, beyond, out=terms).sum(-1)


def _seen(n_tokens: int, visibility: Visibility) -> Bool[Tensor, "T T"]:
    """True where a query sees a key."""
    first, last = (ends[:, None] for ends in (visibility.first_keys(n_tokens), visibility.last_keys(n_tokens)))
    keys = torch.arange(n_tokens)
    return (keys >= first) & (keys < last)
