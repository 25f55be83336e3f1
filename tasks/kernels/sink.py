"""Sink geometry: what the first token's value and the rest of the sum do to the length of a head's output."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from tasks.kernels.outputs import HeadOutputs, root
from tasks.kernels.visibility import CAUSAL, QUERY_BLOCK, Visibility
from tasks.kernels.weights import LayerWeights

_SAME = 1e-6
"""Below this share of ‖s‖ + ‖m‖ a difference s − m is float32 rounding: the two are the same vector."""


@dataclass(frozen=True)
class SinkGeometry:
    """One number per head and query i = 1 … n that sees key 0."""

    sink_rate: Float[Tensor, "H n"]
    """a = α[h,i,0] in [0, 1]."""
    output_norm: Float[Tensor, "H n"]
    sink_norm: Float[Tensor, "H n"]
    """‖s‖, the same for all queries of a head unless a gate makes them differ."""
    tail_norm: Float[Tensor, "H n"]
    """‖m‖; NaN where r = 0."""
    cosine_sink_tail: Float[Tensor, "H n"]
    """cos(s, m); NaN where s or m has no direction."""
    a_star: Float[Tensor, "H n"]
    """The sink rate at which ‖o(a)‖ is smallest, unbounded; NaN where r = 0 or s = m."""
    min_norm: Float[Tensor, "H n"]
    """‖o(a*)‖ ≥ 0; NaN where a* is."""


def tail_mass(
    attention: Float[Tensor, "H T T"], *, visibility: Visibility = CAUSAL, query_block: int = QUERY_BLOCK
) -> Float[Tensor, "H T"]:
    """Σ_{j≥1} α[h,i,j], in [0, 1]: added from the entries, so it keeps its digits where the sink takes nearly all."""
    n_tokens = attention.shape[1]
    mass = attention.new_zeros(attention.shape[:2])
    for block in visibility.blocks(n_tokens, query_block):
        mass[:, block.rows] = attention[:, block.rows, max(1, block.first_key) : block.last_key].sum(-1)
    return mass


def first_values(outputs: HeadOutputs, rows: slice) -> Float[Tensor, "H n d_v"]:
    """v[g,0] as each query head reads it, the sink's value before projection; with a gate, as these rows gate it."""
    return outputs.gated(outputs.value[:, :1].repeat_interleave(outputs.group, dim=0), rows)


def sink_geometry(
    outputs: HeadOutputs, weights: LayerWeights, rest: Float[Tensor, "H T"], *, visibility: Visibility = CAUSAL
) -> SinkGeometry:
    """Where on the segment between sink value and tail mean each output lies, and where its length would be least.

    s = ṽ[h,0], r = `rest` (Σ_{j≥1} α plus the learned sink's mass, whose value is zero), m = Σ_{j≥1} α ṽ_j / r.
    o(a) = a s + (1−a) m; ‖o(a)‖² is convex in a with second derivative 2‖s−m‖², least at
    a* = (‖m‖² − ⟨s,m⟩)/‖s−m‖² = −⟨m, s−m⟩/‖s−m‖². a* in (0, 1) means that some attention to the sink makes the
    output shorter than either end; below 0, that s and m agree; a + r = 1 only up to rounding.
    Queries: 1 … n, those that see key 0 (all but 0; at most window − 1); an encoder's query 0 is left out too, since
    the sink is its own position. NaN as each field says.
    Reference: Cunningham & Muca Cirone 2026, arXiv 2606.07604.
    """
    rows = visibility.sink_queries(outputs.norm.shape[1])
    s = first_values(outputs, rows)  # (H, 1 or n, d_v)
    r = torch.where(rest[:, rows] > 0, rest[:, rows], torch.nan)  # no rest, no mean of it
    m = outputs.tail[:, rows] / r[..., None]  # (H, n, d_v)
    sG, mG = torch.bmm(s, weights.gram), torch.bmm(m, weights.gram)
    sink_norm, tail_norm = root((s * sG).sum(-1)), root((m * mG).sum(-1))
    e, eG = s - m, sG - mG
    distance = root((e * eG).sum(-1))
    apart = distance > _SAME * (sink_norm + tail_norm)
    a_star = torch.where(apart, -(mG * e).sum(-1) / distance.square(), torch.nan)
    least = root(((m + a_star[..., None] * e) * (mG + a_star[..., None] * eG)).sum(-1))
    cosine = (mG * s).sum(-1) / (sink_norm * tail_norm)  # 0/0 is NaN
    return SinkGeometry(
        sink_rate=outputs.sink_rate[:, rows],
        output_norm=outputs.norm[:, rows],
        sink_norm=sink_norm.expand_as(tail_norm),
        tail_norm=tail_norm,
        cosine_sink_tail=cosine.clamp_(-1, 1),
        a_star=a_star,
        min_norm=least,
    )
