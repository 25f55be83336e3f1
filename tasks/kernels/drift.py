"""Semantic drift: what many small attention weights add up to, and whether the sink's value opposes it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from tasks.kernels.outputs import HeadOutputs, read_by_query_heads, root
from tasks.kernels.sink import first_values
from tasks.kernels.visibility import CAUSAL, QUERY_BLOCK, Visibility
from tasks.kernels.weights import LayerWeights


@dataclass(frozen=True)
class SemanticDrift:
    """Means over the queries of one document, per head."""

    n: int
    """Queries counted: T − 1, all but the first."""
    norm: Float[Tensor, " H"]
    """Mean ‖Σ_weak α ṽ‖ ≥ 0, in the units of the residual stream; 0 for a query without weak entries; NaN if n = 0."""
    cosine_sink: Float[Tensor, " H"]
    """Mean cosine of the drift with ṽ[h,0] over the queries that drift, in [−1, 1]; NaN where none does or ṽ_0 = 0."""


def semantic_drift(
    attention: Float[Tensor, "H T T"],
    outputs: HeadOutputs,
    weights: LayerWeights,
    *,
    visibility: Visibility = CAUSAL,
    query_block: int = QUERY_BLOCK,
) -> SemanticDrift:
    """Length of Σ α ṽ over the weak tail entries of each query, and its cosine with the sink's value.

    Weak: α[h,i,j] < 1/(i+1), the uniform weight of a query over all keys up to its own (also where the layer slides),
    or 1/T over all keys of an encoder's document, at keys j ≥ 1 that it sees. A cosine near −1 means that the sink's
    value opposes what the small weights add up to. `attention` (H, T, T) in [0, 1], zero at invisible keys. Means are
    taken in float64.
    Reference: Cunningham & Muca Cirone 2026, arXiv 2606.07604.
    """
    n_heads, n_tokens, _ = attention.shape
    read = read_by_query_heads(outputs.value, n_heads)
    read[:, 0] = 0  # the sink is no part of the tail
    uniform = visibility.last_keys(n_tokens).to(attention.dtype).reciprocal_()[:, None]  # (T, 1)
    drift = torch.empty_like(read)
    for block in visibility.blocks(n_tokens, query_block):
        rows, keys = block.rows, block.keys
        alpha = attention[:, rows, keys]
        weak = alpha.numpy() < uniform[rows].numpy()  # numpy compares ten times as fast as torch
        drift[:, rows] = torch.bmm(torch.from_numpy(weak.astype(np.float32)).mul_(alpha), read[:, keys])
    later = slice(1, None)
    drift = outputs.gated(drift[:, later], later)  # (H, T−1, d_v)
    projected = torch.bmm(drift, weights.gram)
    norm = root((drift * projected).sum(-1))
    first_norm = outputs.first_norm if outputs.gate is None else outputs.first_norm[:, later]
    cosine = (projected * first_values(outputs, later)).sum(-1) / (norm * first_norm)  # 0/0 is NaN
    cosine = torch.where(norm > 0, cosine, torch.nan).double().clamp_(-1, 1)
    return SemanticDrift(n_tokens - 1, norm.double().mean(-1), cosine.nanmean(-1))
