"""Moments of the factors of tail entries (j ≠ 0, j ≠ i): nearly all entries of a document, taken block by block."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from tasks.kernels.moments import Moments
from tasks.kernels.outputs import HeadOutputs
from tasks.kernels.scores import ScoreBlocks, reciprocal
from tasks.kernels.visibility import CAUSAL, QUERY_BLOCK, QueryBlock, Visibility

_TO_FACTORS = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, -1, 1]], dtype=torch.float64)
"""From (log α, log ‖ṽ‖/‖o‖, log|score|) to the three factors: log|cos| is the third less the second."""
_LEAST = 1e-38
"""Stands in for a length of 0, whose logarithm is then given no weight."""


def tail_entries(n_tokens: int, visibility: Visibility) -> int:
    """How many visible pairs with j ≠ 0 and j ≠ i there are: each query's keys but its own, less those that are 0."""
    seen = int((visibility.last_keys(n_tokens) - visibility.first_keys(n_tokens)).sum())
    sink = visibility.sink_queries(n_tokens)
    return seen - n_tokens - (sink.stop - sink.start)


def tail_moments(
    attention: Float[Tensor, "H T T"],
    outputs: HeadOutputs,
    *,
    visibility: Visibility = CAUSAL,
    query_block: int = QUERY_BLOCK,
) -> Moments:
    """Moments per head of `factor_moments`' variables over the tail: sums in float32 a block, merged in float64."""
    moments = Moments.zeros((len(attention),), 7, 3)
    scores = ScoreBlocks(outputs, query_block)
    for block in visibility.blocks(outputs.norm.shape[1], query_block):
        mean = torch.from_numpy(moments.mean).to(attention.dtype)
        pivot = torch.stack((mean[:, 0], mean[:, 1] + mean[:, 2]))  # of log α and log|score|, so far (2, H)
        moments = moments.merge(_block_moments(attention, scores.intra(block), outputs, block, visibility, pivot))
    return moments


def _tail_keys(block: QueryBlock, visibility: Visibility, n_tokens: int) -> Bool[Tensor, "q K"]:
    inside = visibility.inside(block, n_tokens)
    inside &= torch.arange(block.first_key, block.last_key) != torch.arange(block.start, block.stop)[:, None]
    if block.first_key == 0:
        inside[:, 0] = False
    return inside


def _block_moments(
    attention: Float[Tensor, "H T T"],
    score: Float[Tensor, "H q K"],
    outputs: HeadOutputs,
    block: QueryBlock,
    visibility: Visibility,
    pivot: Float[Tensor, "2 H"],
) -> Moments:
    """Moments of the tail entries of a block.

    log α and log|score| are taken about `pivot`, near their means, so that squares keep their digits.
    """
    rows, keys = block.rows, block.keys
    alpha, length, norm = attention[:, rows, keys], outputs.lengths(block), outputs.norm[:, rows]
    inside = _tail_keys(block, visibility, outputs.norm.shape[1]).numpy()
    kept = (alpha.numpy() != 0) & (score.numpy() != 0) & inside  # numpy compares ten times as fast as torch
    weight = torch.from_numpy(kept.astype(np.float32))  # (H, q, K)
    alpha, score = alpha * weight, score * weight
    unit = 1 - weight  # where nothing is kept: log 1, and a weight of 0
    x = (alpha + unit).log_().sub_(pivot[0, :, None, None]).mul_(weight)
    p = score.abs().add_(unit).log_().sub_(pivot[1, :, None, None]).mul_(weight)

    n, sums, products = (_log_sums if outputs.gate is None else _log_sums_by_entry)(weight, x, p, length, norm)
    count = n.clamp_min(1)
    centred = products - torch.einsum("fh,gh->hfg", sums, sums) / count[:, None, None]
    mean = sums / count + torch.stack((pivot[0], torch.zeros_like(pivot[0]), pivot[1]))
    plain = torch.stack((alpha.sum((1, 2)), *_ratio_sums(weight, score, length, norm), _dot(alpha, score))) / count
    mean = torch.cat((mean[:2], (mean[2] - mean[1])[None], plain)) * (n > 0)
    comoment = _TO_FACTORS @ centred @ _TO_FACTORS.T
    return Moments(n.numpy().astype(np.int64), mean.T.contiguous().numpy(), comoment.numpy())


def _log_sums(
    weight: Float[Tensor, "H q K"],
    x: Float[Tensor, "H q K"],
    p: Float[Tensor, "H q K"],
    length: Float[Tensor, "H 1 K"],
    norm: Float[Tensor, "H q"],
) -> tuple[Float64[Tensor, " H"], Float64[Tensor, "3 H"], Float64[Tensor, "H 3 3"]]:
    """Count, sums and sums of products of x, y, p with y = log ‖ṽ_j‖/‖o_i‖ = c_j − e_i.

    y is never made: its sums are products of a matrix with the vectors c and e.
    """
    c, e = length[:, 0].clamp_min(_LEAST).log(), norm.clamp_min(_LEAST).log()
    level = c.mean(-1, keepdim=True)  # c_j − e_i does not change with it, and small c keep their digits in c²
    c, e = c - level, (e - level).double()
    ones = torch.ones_like(c)
    count, c_row, cc_row = torch.bmm(weight, torch.stack((ones, c, c * c), -1)).double().unbind(-1)  # each (H, q)
    (x_row, xc_row), (p_row, pc_row) = (torch.bmm(t, torch.stack((ones, c), -1)).double().unbind(-1) for t in (x, p))
    sums = torch.stack((x_row.sum(-1), (c_row - e * count).sum(-1), p_row.sum(-1)))
    xx, xp, pp = _dot(x, x), _dot(x, p), _dot(p, p)
    xy, py = (xc_row - e * x_row).sum(-1), (pc_row - e * p_row).sum(-1)
    yy = (cc_row - 2 * e * c_row + e * e * count).sum(-1)
    return count.sum(-1), sums, torch.stack((xx, xy, xp, xy, yy, py, xp, py, pp), -1).view(-1, 3, 3)


def _log_sums_by_entry(
    weight: Float[Tensor, "H q K"],
    x: Float[Tensor, "H q K"],
    p: Float[Tensor, "H q K"],
    length: Float[Tensor, "H q K"],
    norm: Float[Tensor, "H q"],
) -> tuple[Float64[Tensor, " H"], Float64[Tensor, "3 H"], Float64[Tensor, "H 3 3"]]:
    """The same where a gate makes the lengths differ from query to query, so that y has to be made."""
    y = (length.clamp_min(_LEAST).log() - norm.clamp_min(_LEAST).log()[..., None]).mul_(weight)
    variables = torch.stack((x, y, p), 1).flatten(2).double()  # (H, 3, q·K)
    return weight.sum((1, 2)).double(), variables.sum(-1).T, torch.bmm(variables, variables.transpose(1, 2))


def _ratio_sums(
    weight: Float[Tensor, "H q K"],
    score: Float[Tensor, "H q K"],
    length: Float[Tensor, "H n K"],
    norm: Float[Tensor, "H q"],
) -> tuple[Float64[Tensor, " H"], Float64[Tensor, " H"]]:
    """Σ ‖ṽ_j‖/‖o_i‖ and Σ cos = Σ score ‖o_i‖/‖ṽ_j‖ over the entries kept."""
    if length.shape[1] == 1:
        relative = torch.bmm(weight, length.transpose(1, 2))[..., 0] * reciprocal(norm)
        cosine = torch.bmm(score, reciprocal(length).transpose(1, 2))[..., 0] * norm
    else:
        relative = (weight * length).sum(-1) * reciprocal(norm)
        cosine = (score * reciprocal(length)).sum(-1) * norm
    return relative.double().sum(-1), cosine.double().sum(-1)


def _dot(left: Float[Tensor, "H q K"], right: Float[Tensor, "H q K"]) -> Float64[Tensor, " H"]:
    """Σ of the products of a block's entries, per head."""
    return torch.from_numpy(np.einsum("hqk,hqk->h", left.numpy(), right.numpy()).astype(np.float64))
