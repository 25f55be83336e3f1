"""What each head writes for each query, and its length, without ever leaving the head's width d_v."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from tasks.kernels.gate import Gate
from tasks.kernels.visibility import CAUSAL, QUERY_BLOCK, QueryBlock, Visibility
from tasks.kernels.weights import LayerWeights

_CANCELLED = 1e-6
"""Share of Σ_h ‖o[h,i]‖² below which ‖o[i]‖² is what rounding left of heads that cancel: it counts as 0."""


@dataclass(frozen=True)
class HeadOutputs:
    """The heads' outputs of one document and layer, shared by the kernels that measure them.

    The sum over keys is split at key 0, z = α_0 v_0 + tail, so that what the sink adds to, and what is left without
    it, come from sums and never from a difference of large numbers.
    """

    value: Float[Tensor, "H_kv T d_v"]
    """v[g,j], one row per key/value head."""
    value_norm: Float[Tensor, "H T"]
    """‖ṽ[h,j]‖ ≥ 0; with a gate, as the key's own query gates it."""
    first_norm: Float[Tensor, "H n"]
    """‖ṽ[h,0]‖ ≥ 0; with a gate for each query (n = T), else n = 1."""
    sink_rate: Float[Tensor, "H T"]
    """α[h,i,0]."""
    tail: Float[Tensor, "H T d_v"]
    """Σ_{j≥1} α[h,i,j] v[g,j], gated."""
    projected: Float[Tensor, "H T d_v"]
    """z[h,i] G_h, gated, so that ⟨ṽ_j, o[h,i]⟩ = projected · v_j."""
    crossed: Float[Tensor, "T H d_v"]
    """o[i] W_O[h]ᵀ, gated, so that ⟨ṽ[h,j], o[i]⟩ = crossed · v_j."""
    norm: Float[Tensor, "H T"]
    """‖o[h,i]‖ ≥ 0."""
    layer_norm: Float[Tensor, " T"]
    """‖o[i]‖ ≥ 0, of the sum over heads."""
    gate: Gate | None = None
    """What multiplies each head's output, where the family gates them: ṽ[h,j] is then one for each query."""

    def lengths(self, block: QueryBlock) -> Float[Tensor, "H n K"]:
        """‖ṽ[h,j]‖ of a block's keys, for each of its queries where a gate makes them differ, else for all at once."""
        if self.gate is None:
            return self.value_norm[:, None, block.keys]
        return self.gate.lengths(read_by_query_heads(self.value, self.norm.shape[0]), block)

    def gated(self, vectors: Float[Tensor, "H m d_v"], rows: slice) -> Float[Tensor, "H n d_v"]:
        """Sums of values of these queries, or one vector for all of them, as W_O is given them."""
        return vectors if self.gate is None else vectors * self.gate.values[:, rows]

    @property
    def group(self) -> int:
        """Query heads per key/value head."""
        return self.norm.shape[0] // self.value.shape[0]


def read_by_query_heads(value: Float[Tensor, "H_kv T d_v"], n_heads: int) -> Float[Tensor, "H T d_v"]:
    """A copy of the values that each query head reads: head h reads key/value head h // (H / H_kv).

    Raises ValueError where the heads do not divide evenly.
    """
    if n_heads % value.shape[0]:
        raise ValueError(f"expected query heads in equal groups, got {n_heads} over {value.shape[0]} key/value heads")
    return value.repeat_interleave(n_heads // value.shape[0], dim=0)


def root(square: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
    """Norms from squared norms: what rounding left below float32's normal range is 0, and never NaN."""
    return torch.where(square < torch.finfo(square.dtype).tiny, 0, square).sqrt_()


def weighted_sums(
    attention: Float[Tensor, "H T T"], read: Float[Tensor, "H T d_v"], *, visibility: Visibility, query_block: int
) -> Float[Tensor, "H T d_v"]:
    """Σ_j α[h,i,j] read[h,j] over visible keys, block by block of queries."""
    sums = torch.empty_like(read)
    for block in visibility.blocks(read.shape[1], query_block):
        rows, keys = block.rows, block.keys
        sums[:, rows] = torch.bmm(attention[:, rows, keys], read[:, keys])
    return sums


def head_outputs(
    attention: Float[Tensor, "H T T"],
    value: Float[Tensor, "T H_kv d_v"],
    weights: LayerWeights,
    *,
    gate: Float[Tensor, "T H d_v"] | None = None,
    visibility: Visibility = CAUSAL,
    query_block: int = QUERY_BLOCK,
) -> HeadOutputs:
    """Outputs o[h,i] = Σ_j α ṽ of every head and query, and their norms, through d_v-wide products.

    z = α v; ‖o[h,i]‖² = z G_h zᵀ; ‖o[i]‖² = Σ_h z[h] · (z M)[h]; ‖ṽ_j‖² = v G_h vᵀ (methods.md §1, "Cost").
    `attention` ≥ 0 is zero at invisible keys, its rows sum to 1 or less; `gate` multiplies each head's output before
    W_O, z = g ⊙ α v, in families that have one. Norms are ≥ 0, in the units of the residual stream; 0 where a head
    writes nothing, or the heads cancel to float32 rounding.
    Raises ValueError where query heads do not divide over the key/value heads.
    """
    n_heads, n_tokens, _ = attention.shape
    value = value.transpose(0, 1).contiguous()  # (H_kv, T, d_v)
    read = read_by_query_heads(value, n_heads)  # (H, T, d_v)
    gates = None if gate is None else Gate.of(gate, weights.gram)
    own = read if gates is None else read * gates.values
    value_norm = root(torch.bmm(own, weights.gram).mul_(own).sum(-1))
    del own
    first = read[:, 0].clone()  # (H, d_v)
    read[:, 0] = 0
    tail = weighted_sums(attention, read, visibility=visibility, query_block=query_block)
    del read  # as large as any array here
    sink_rate = attention[:, :, 0].contiguous()
    by_token = tail.new_empty(n_tokens, n_heads, tail.shape[-1])  # z, one row per token for the product with M
    torch.addcmul(tail.transpose(0, 1), sink_rate.T[..., None], first, out=by_token)
    first_norm = value_norm[:, :1]
    if gate is not None and gates is not None:
        by_token.mul_(gate)
        tail.mul_(gates.values)
        each = first[:, None] * gates.values
        first_norm = root(torch.bmm(each, weights.gram).mul_(each).sum(-1))
    z = by_token.transpose(0, 1)  # (H, T, d_v)
    projected = torch.bmm(z, weights.gram)
    square = (z * projected).sum(-1)  # (H, T)
    crossed = (by_token.view(n_tokens, -1) @ weights.cross).view_as(by_token)
    layer_square = by_token.mul_(crossed).sum((1, 2))  # (T,)
    if gate is not None and gates is not None:
        projected.mul_(gates.values)
        crossed.mul_(gate)
    return HeadOutputs(
        value=value,
        value_norm=value_norm,
        first_norm=first_norm,
        sink_rate=sink_rate,
        tail=tail,
        projected=projected,
        crossed=crossed,
        norm=root(square),
        layer_norm=root(torch.where(layer_square < _CANCELLED * square.sum(0), 0, layer_square)),
        gate=gates,
    )
