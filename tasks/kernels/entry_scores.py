"""The signed score of every entry (h, i, j): what masking ranks."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from tasks.kernels.outputs import HeadOutputs
from tasks.kernels.scores import ScoreBlocks, reciprocal
from tasks.kernels.visibility import CAUSAL, QUERY_BLOCK, QueryBlock, Visibility

ENTRY_SCORES = ("raw", "vw", "vwon", "cw_intra", "cw_inter")
"""raw α; vw α‖ṽ‖; vwon α‖ṽ‖/‖o‖; cw_intra α⟨ṽ, o[h,i]⟩/‖o[h,i]‖²; cw_inter α⟨ṽ, o[i]⟩/‖o[i]‖²."""


def entry_scores(
    attention: Float[Tensor, "H T T"],
    outputs: HeadOutputs,
    score: str,
    *,
    visibility: Visibility = CAUSAL,
    query_block: int = QUERY_BLOCK,
) -> Float[Tensor, "H T T"]:
    """One score of every entry of one document and layer, float32.

    `attention` ≥ 0 and `outputs` are `head_outputs` of the same attention; where a gate multiplies the heads' outputs,
    ṽ is as the query of the entry gates it. raw, vw and vwon are ≥ 0; a negative cw works against the sum.
    0 where the query does not see the key. NaN at the keys that a query sees where ‖o[h,i]‖ = 0 (vwon, cw_intra) or
    ‖o[i]‖ = 0 (cw_inter): 0/0.
    Raises ValueError for a score that is none of ENTRY_SCORES, and for a block below 1.
    Reference: Cunningham & Muca Cirone 2026, arXiv 2606.07604; vw: Kobayashi et al. 2020, arXiv 2004.10102.
    """
    if score not in ENTRY_SCORES:
        raise ValueError(f"expected one of {', '.join(ENTRY_SCORES)}, got {score!r}")
    n_heads, n_tokens, _ = attention.shape
    result = attention.new_zeros(n_heads, n_tokens, n_tokens, dtype=torch.float32)
    per_query = reciprocal(outputs.norm)[..., None]  # (H, T, 1)
    undefined = _undefined(outputs, score)  # (H or 1, T)
    blocks = ScoreBlocks(outputs, query_block) if score.startswith("cw") else None
    for block in visibility.blocks(n_tokens, query_block):
        hidden = ~visibility.inside(block, n_tokens)  # (q, K)
        entry = result[:, block.rows, block.keys]
        entry.copy_(attention[:, block.rows, block.keys])
        if blocks is not None:
            entry.mul_(blocks.intra(block) if score == "cw_intra" else blocks.both(block)[:, 1])
        elif score != "raw":
            entry.mul_(_lengths(outputs, block, None if score == "vw" else per_query))
        if undefined is not None:
            entry.masked_fill_(undefined[:, block.rows, None], torch.nan)
        entry.masked_fill_(hidden, 0)
    return result


def _lengths(outputs: HeadOutputs, block: QueryBlock, per_query: Tensor | None) -> Float[Tensor, "H n K"]:
    lengths = outputs.lengths(block)
    return lengths if per_query is None else lengths * per_query[:, block.rows]


def _undefined(outputs: HeadOutputs, score: str) -> Tensor | None:
    """True for the rows whose score is 0/0; None where none is."""
    if score in ("raw", "vw"):
        return None
    dead = outputs.layer_norm[None] == 0 if score == "cw_inter" else outputs.norm == 0
    return dead if bool(dead.any()) else None
