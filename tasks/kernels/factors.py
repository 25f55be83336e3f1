"""Factor attribution: whether attention, value length or direction decides how much an entry contributes."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from tasks.kernels.moments import Moments
from tasks.kernels.outputs import HeadOutputs, read_by_query_heads
from tasks.kernels.scores import ScoreBlocks, reciprocal
from tasks.kernels.sink import first_values
from tasks.kernels.visibility import QUERY_BLOCK, QueryBlock, query_blocks, visible_block

TOKEN_GROUPS = ("sink", "self", "tail")
FACTORS = ("alpha", "norm", "cosine")
_VARIABLES = 7
"""log α, log(‖ṽ‖/‖o‖), log|cos|; then α, ‖ṽ‖/‖o‖, cos, cw, whose means alone are kept."""
_TO_FACTORS = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, -1, 1]], dtype=torch.float64)
"""From (log α, log ‖ṽ‖/‖o‖, log|score|) to the three factors: log|cos| is the third less the second."""
_LEAST = 1.4e-45
"""The smallest float32 above 0: stands in for 0 where a logarithm is then given no weight."""
_ROUNDING = 2e-6
"""Deviation of a logarithm, as a share of its mean or of 1, that float32 entries cannot tell from none."""


def factor_moments(
    attention: Float[Tensor, "H T T"],
    outputs: HeadOutputs,
    *,
    window: int | None = None,
    query_block: int = QUERY_BLOCK,
) -> tuple[Moments, int]:
    """Moments, per head and token group, of the factors of cw_intra = α · (‖ṽ_j‖/‖o‖) · cos(o, ṽ_j).

    Groups: sink (j = 0 < i), self (j = i > 0), tail (0 < j < i), visible keys only. Cells (H, 3); variables as
    `_VARIABLES` says, co-moments of the three logarithms. An entry with α = 0 or cos = 0 (or ‖o‖ = 0), whose logarithm
    does not exist, is left out of every moment; the second result is how many were.
    Entries are float32; moments are merged in float64.
    """
    n_tokens = outputs.norm.shape[1]
    queries = torch.arange(n_tokens)
    scale = reciprocal(outputs.norm).square_()
    read = read_by_query_heads(outputs.value, outputs.norm.shape[0])
    left_out = 0

    sink_keys = (queries >= 1) & (queries < (n_tokens if window is None else window))
    sink_score = (outputs.projected * first_values(outputs)).sum(-1) * scale
    self_score = (outputs.projected * read).sum(-1) * scale
    own = attention.diagonal(dim1=1, dim2=2)
    length = outputs.value_norm
    groups = [
        _entry_moments(outputs.sink_rate, sink_score, length[:, :1].expand_as(length), outputs.norm, sink_keys),
        _entry_moments(own, self_score, length, outputs.norm, queries >= 1),
    ]
    seen = [int(sink_keys.sum()), n_tokens - 1]

    tail, seen_tail = Moments.zeros((len(length),), _VARIABLES, len(FACTORS)), 0
    scores = ScoreBlocks(outputs, query_block)
    for block in query_blocks(n_tokens, window, query_block):
        inside = _tail_keys(block, window)
        mean = torch.from_numpy(tail.mean).to(attention.dtype)
        pivot = torch.stack((mean[:, 0], mean[:, 1] + mean[:, 2]))
        tail = tail.merge(_block_moments(attention, scores.intra(block), outputs, block, inside, pivot))
        seen_tail += int(inside.sum())
    groups.append(tail)
    seen.append(seen_tail)
    left_out = sum(s * len(length) - int(g.n.sum()) for s, g in zip(seen, groups, strict=True))
    stacked = Moments(*(np.stack([getattr(g, f) for g in groups], 1) for f in ("n", "mean", "comoment")))
    return stacked, left_out


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


def _tail_keys(block: QueryBlock, window: int | None) -> Bool[Tensor, "q K"]:
    inside = visible_block(block, window)
    inside &= torch.arange(block.first_key, block.stop) != torch.arange(block.start, block.stop)[:, None]
    if block.first_key == 0:
        inside[:, 0] = False
    return inside


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


def _block_moments(
    attention: Float[Tensor, "H T T"],
    score: Float[Tensor, "H q K"],
    outputs: HeadOutputs,
    block: QueryBlock,
    inside: Bool[Tensor, "q K"],
    pivot: Float[Tensor, "2 H"],
) -> Moments:
    """Moments of the tail entries of a block, with sums over the block in float32.

    log α and log|score| are taken about `pivot`, near their means, so that squares keep their digits. The logarithm of
    ‖ṽ_j‖/‖o_i‖ is c_j − e_i: its sums need products of a matrix with vectors only.
    """
    rows, keys = slice(block.start, block.stop), slice(block.first_key, block.stop)
    alpha, length, norm = attention[:, rows, keys], outputs.value_norm[:, keys], outputs.norm[:, rows]
    kept = (alpha.numpy() != 0) & (score.numpy() != 0) & inside.numpy()  # numpy compares ten times as fast as torch
    weight = torch.from_numpy(kept.astype(np.float32))  # (H, q, K)
    c, e = length.clamp_min(_LEAST).log(), norm.clamp_min(_LEAST).log()
    level = c.mean(-1, keepdim=True)  # c_j − e_i does not change with it, and small c keep their digits in c²
    c, e = c - level, e - level
    alpha, score = alpha * weight, score * weight
    unit = 1 - weight  # where nothing is kept: log 1, and a weight of 0
    x = (alpha + unit).log_().sub_(pivot[0, :, None, None]).mul_(weight)
    p = score.abs().add_(unit).log_().sub_(pivot[1, :, None, None]).mul_(weight)

    ones = torch.ones_like(c)
    by_row = torch.bmm(weight, torch.stack((ones, c, c * c, length), -1)).double()  # over the keys (H, q, 4)
    x_row, p_row = (torch.bmm(t, torch.stack((ones, c), -1)).double() for t in (x, p))  # (H, q, 2)
    e, norm = e.double(), norm.double()
    xx, xp, pp, cw = (_dot(*pair) for pair in ((x, x), (x, p), (p, p), (alpha, score)))
    n = by_row[..., 0].sum(-1)
    count = n.clamp_min(1)
    sums = torch.stack((x_row[..., 0].sum(-1), (by_row[..., 1] - e * by_row[..., 0]).sum(-1), p_row[..., 0].sum(-1)))
    yy = (by_row[..., 2] - 2 * e * by_row[..., 1] + e * e * by_row[..., 0]).sum(-1)
    xy, py = ((t[..., 1] - e * t[..., 0]).sum(-1) for t in (x_row, p_row))
    products = torch.stack((xx, xy, xp, xy, yy, py, xp, py, pp), -1).view(-1, 3, 3)  # of x, y, p
    centred = products - (sums[:, None] * sums[None] / count).permute(2, 0, 1)
    mean = sums / count + torch.stack((pivot[0], torch.zeros_like(pivot[0]), pivot[1]))
    relative = (by_row[..., 3] / norm.clamp_min(_LEAST)).sum(-1)
    cosine = (torch.bmm(score, reciprocal(length)[..., None])[..., 0] * norm).sum(-1)
    plain = torch.stack((alpha.sum((1, 2)).double(), relative, cosine, cw)) / count
    mean = torch.cat((mean[:2], (mean[2] - mean[1])[None], plain)) * (n > 0)
    return Moments(
        n.numpy().astype(np.int64), mean.T.contiguous().numpy(), (_TO_FACTORS @ centred @ _TO_FACTORS.T).numpy()
    )


def _dot(left: Float[Tensor, "H q K"], right: Float[Tensor, "H q K"]) -> Float64[Tensor, " H"]:
    """Σ of the products of a block's entries, per head."""
    return torch.from_numpy(np.einsum("hqk,hqk->h", left.numpy(), right.numpy()).astype(np.float64))
