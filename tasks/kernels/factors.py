"""Factor attribution: whether attention, value length or direction decides how much an entry contributes."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from tasks.kernels.factor_tail import tail_entries, tail_moments
from tasks.kernels.moments import Moments
from tasks.kernels.outputs import HeadOutputs, read_by_query_heads
from tasks.kernels.scores import reciprocal
from tasks.kernels.visibility import CAUSAL, QUERY_BLOCK, Visibility

TOKEN_GROUPS = ("sink", "self", "tail")
FACTORS = ("alpha", "norm", "cosine")
_ROUNDING = 2e-6
"""Deviation of a logarithm, as a share of its mean or of 1, that float32 entries cannot tell from none."""


def factor_moments(
    attention: Float[Tensor, "H T T"],
    outputs: HeadOutputs,
    *,
    visibility: Visibility = CAUSAL,
    query_block: int = QUERY_BLOCK,
) -> tuple[Moments, int]:
    """Moments, per head and token group, of the factors of cw_intra = α · (‖ṽ_j‖/‖o‖) · cos(o, ṽ_j).

    Groups: sink (j = 0 < i), self (j = i > 0), tail (all other j > 0: 0 < j < i, and of an encoder j > i too), visible
    keys only; the entry (0, 0) would be sink and self at once and is in none. Cells (H, 3); variables log α,
    log(‖ṽ‖/‖o‖), log|cos| with their co-moments, then α, ‖ṽ‖/‖o‖, cos, cw, whose means alone are kept. An entry with
    α = 0, cos = 0 or ‖o‖ = 0, whose logarithm does not exist, is left out of every moment; the second result is how
    many were. Entries are float32; moments are merged in float64.
    Reference: Cunningham & Muca Cirone 2026, arXiv 2606.07604.
    """
    n_heads, n_tokens = outputs.norm.shape
    queries, length = torch.arange(n_tokens), outputs.value_norm
    scale = reciprocal(outputs.norm).square_()
    sink_score = (outputs.projected * read_by_query_heads(outputs.value[:, :1], n_heads)).sum(-1) * scale
    own_score = (outputs.projected * read_by_query_heads(outputs.value, n_heads)).sum(-1) * scale
    own = attention.diagonal(dim1=1, dim2=2)
    see_sink = torch.zeros(n_tokens, dtype=torch.bool)
    see_sink[visibility.sink_queries(n_tokens)] = True
    groups = (
        _entry_moments(outputs.sink_rate, sink_score, outputs.first_norm.expand_as(length), outputs.norm, see_sink),
        _entry_moments(own, own_score, length, outputs.norm, queries >= 1),
        tail_moments(attention, outputs, visibility=visibility, query_block=query_block),
    )
    entries = n_heads * (int(see_sink.sum()) + n_tokens - 1 + tail_entries(n_tokens, visibility))
    stacked = Moments(*(np.stack([getattr(g, part) for g in groups], 1) for part in ("n", "mean", "comoment")))
    return stacked, entries - int(stacked.n.sum())


def factor_shares(moments: Moments) -> Float64[np.ndarray, "*cells 3"]:
    """Share of each factor f in the spread of log|cw|: Cov(log f, log|cw|) / Var(log|cw|); the three sum to 1.

    A share may be negative (the factor works against the others) or above 1. NaN where fewer than two entries are
    counted or log|cw| does not vary beyond rounding.
    """
    with_whole = moments.comoment.sum(-1)  # Cov(log f, Σ log f) (…, 3)
    whole = with_whole.sum(-1)
    mean = np.abs(moments.mean[..., :3].sum(-1))
    rounding = moments.n * (_ROUNDING * np.maximum(1, mean)) ** 2
    varies = (moments.n > 1) & (whole > rounding)
    return with_whole / np.where(varies, whole, np.nan)[..., None]


def _entry_moments(
    alpha: Float[Tensor, "H T"],
    score: Float[Tensor, "H T"],
    length: Float[Tensor, "H T"],
    norm: Float[Tensor, "H T"],
    inside: Bool[Tensor, " T"],
) -> Moments:
    """Moments over one entry per query: few enough for float64 throughout."""
    alpha, score, length, norm = (x.double() for x in (alpha, score, length, norm))
    kept = inside & (alpha > 0) & (score != 0)  # (H, T)
    n = kept.sum(-1)
    relative = torch.where(kept, length / norm, 1)
    cosine = torch.where(kept, score / relative, 1)
    logs = torch.stack((torch.where(kept, alpha, 1).log(), relative.log(), cosine.abs().log()))  # (3, H, T)
    plain = torch.stack((alpha, relative, cosine, alpha * score))
    mean = torch.where(kept, torch.cat((logs, plain)), 0).sum(-1) / n.clamp_min(1)  # (7, H)
    centred = torch.where(kept, logs - mean[:3, :, None], 0)
    comoment = torch.einsum("fht,ght->hfg", centred, centred)
    return Moments(n.numpy(), mean.T.contiguous().numpy(), comoment.numpy())
