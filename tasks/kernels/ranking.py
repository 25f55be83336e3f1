"""Ranks of entries and of keys by a score: one sort, of which every rate then takes its share.

Ranks count from 0, the highest score; −1 is no candidate. Candidates lie in the queries that count
(`Visibility.counted`) and at keys that they see; `keep_first` leaves key 0 out. With `absolute` the size of a score
counts, not its sign. Ties go to the earlier entry, row by row. A score of NaN (0/0, where a head writes nothing) counts
as 0, so that it ranks with what adds nothing; `undefined_scores` says how many there are. Ranks and sizes plug into
`Share` (tasks/models/intervention_tensors.py).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from tasks.kernels.visibility import Visibility

_SIGN, _LOW = np.uint32(0x80000000), np.uint64(0xFFFFFFFF)


def entry_ranks(
    scores: Float[Tensor, "H T T"], visibility: Visibility, *, absolute: bool, keep_first: bool
) -> tuple[Int[Tensor, "H T T"], Int[Tensor, "H 1 1"]]:
    """Ranks of all candidates of a head together (int32), and how many they are (int64)."""
    n_heads, n_tokens, _ = scores.shape
    at = _places(n_tokens, visibility, keep_first)
    strengths = _strengths(scores.flatten(1).index_select(1, at).numpy(), absolute)
    order = _order(strengths, at.numpy())
    ranks = torch.full((n_heads, n_tokens * n_tokens), -1, dtype=torch.int32)
    ranks.scatter_(1, order, torch.arange(len(at), dtype=torch.int32).expand(n_heads, -1))
    return ranks.view(n_heads, n_tokens, n_tokens), torch.full((n_heads, 1, 1), len(at))


def row_ranks(
    scores: Float[Tensor, "H T T"], visibility: Visibility, *, absolute: bool, keep_first: bool
) -> tuple[Int[Tensor, "H T T"], Int[Tensor, "H T 1"]]:
    """Ranks inside each query row (int32), and how many candidates the row has (int64; 0 where it does not count)."""
    n_heads, n_tokens, _ = scores.shape
    candidates = _candidates(n_tokens, visibility, keep_first)
    ranks = _ranked(_strengths(scores.numpy(), absolute), last=~candidates)
    ranks[:, ~candidates] = -1
    sizes = torch.from_numpy(candidates.sum(1))[None, :, None].expand(n_heads, -1, -1)
    return torch.from_numpy(ranks), sizes.contiguous()


def token_ranks(
    token_scores: Float[Tensor, "H n"], n_tokens: int, *, keep_first: bool
) -> tuple[Int[Tensor, "H T"], Int[Tensor, "H 1"]]:
    """Ranks of the keys 0 … n−1 of a document of T tokens (int32; −1 behind them), and how many they are (int64).

    The scores are ranked as they are: `token_scores_of` takes their absolute values before it adds them up. Raises
    ValueError for more scores than tokens.
    """
    n_heads, n = token_scores.shape
    if n > n_tokens:
        raise ValueError(f"expected scores of at most {n_tokens} keys, got {n}")
    first = 1 if keep_first else 0
    ranks = np.full((n_heads, n_tokens), -1, np.int32)
    ranks[:, first:n] = _ranked(_strengths(token_scores.numpy()[:, first:], absolute=False))
    return torch.from_numpy(ranks), torch.full((n_heads, 1), max(0, n - first))


def token_scores_of(
    scores: Float[Tensor, "H T T"], visibility: Visibility, *, reduce: str, absolute: bool
) -> Float[Tensor, "H n"]:
    """Sum or mean of a key's score, or of its absolute value, over the queries that see it and count.

    `scores` are 0 where the query does not see the key. The mean favours keys that few queries see, the sum those that
    many do. NaN where one of those scores is. Raises ValueError for a `reduce` that is neither "mean" nor "sum".
    """
    if reduce not in ("mean", "sum"):
        raise ValueError(f"expected mean or sum, got {reduce!r}")
    n_tokens = scores.shape[1]
    n = visibility.counted(n_tokens)
    counted = scores[:, :n, :n]
    sums = (counted.abs() if absolute else counted).sum(1, dtype=torch.float64)
    if reduce == "mean":
        first, last = visibility.seers(n_tokens)
        sums /= last - first
    return sums.to(scores.dtype)


def undefined_scores(scores: Float[Tensor, "H T T"], visibility: Visibility, *, keep_first: bool) -> int:
    """How many candidates have a score of NaN, which the ranks count as 0."""
    candidates = torch.from_numpy(_candidates(scores.shape[1], visibility, keep_first))
    return int((scores.isnan() & candidates).sum())


def _candidates(n_tokens: int, visibility: Visibility, keep_first: bool) -> np.ndarray:
    """(T, T) bool: true where the query counts and sees the key."""
    keys = np.arange(n_tokens)
    first, last = visibility.first_keys(n_tokens).numpy(), visibility.last_keys(n_tokens).numpy()
    seen: np.ndarray = (keys >= first[:, None]) & (keys < last[:, None])
    seen[visibility.counted(n_tokens) :] = False
    if keep_first:
        seen[:, 0] = False
    return seen


def _strengths(scores: np.ndarray, absolute: bool) -> np.ndarray:
    """A copy of the scores to rank by, float32, NaN as 0."""
    strengths: np.ndarray = np.abs(scores, dtype=np.float32) if absolute else scores.astype(np.float32)
    strengths[np.isnan(strengths)] = 0
    return strengths


def _ranked(strengths: np.ndarray, last: np.ndarray | None = None) -> np.ndarray:
    """The rank of each number along the last axis, the highest first, ties to the earlier; int32. `last` (…, n) bool
    goes behind all numbers.

    A number and its place are packed into one integer, so that no two are equal and a plain sort is stable: a third of
    the time of a stable sort of the numbers (9 heads × 32,640 entries: 6 ms against 21).
    """
    n = strengths.shape[-1]
    order = _order(strengths, np.arange(n), last)
    ranks = torch.empty(strengths.shape, dtype=torch.int32)
    ranks.scatter_(-1, order, torch.arange(n, dtype=torch.int32).expand(strengths.shape))
    return ranks.numpy()


def _order(strengths: np.ndarray, places: np.ndarray, last: np.ndarray | None = None) -> Int[Tensor, "*axes n"]:
    """The places of the numbers along the last axis, from the highest; `places` (n,) rise, and are below 2^32."""
    bits = (strengths + np.float32(0)).view(np.uint32)  # −0 and 0 tie
    falling = np.where(bits & _SIGN, bits, ~bits & ~_SIGN)  # unsigned integers in the opposite order of the numbers
    packed = falling.astype(np.uint64) << np.uint64(32)
    if last is not None:
        packed[:, last] = _LOW << np.uint64(32)
    packed |= places.astype(np.uint64)
    packed.sort(axis=-1)
    packed &= _LOW
    return torch.from_numpy(packed.view(np.int64))


@lru_cache(maxsize=64)
def _places(n_tokens: int, visibility: Visibility, keep_first: bool) -> Int[Tensor, " n"]:
    """Where the candidates lie in a flattened (T, T)."""
    return torch.from_numpy(_candidates(n_tokens, visibility, keep_first)).flatten().nonzero().flatten()
