"""Which keys a query sees, and the blocks of queries in which every kernel of a document runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

QUERY_BLOCK = 64
"""Queries a block: 9 heads × 64 queries × 512 keys in float32 stay in a core's second-level cache."""


@dataclass(frozen=True)
class QueryBlock:
    """Queries [start, stop) and the keys [first_key, stop) that any of them may see."""

    start: int
    stop: int
    first_key: int


def query_blocks(n_tokens: int, window: int | None, size: int = QUERY_BLOCK) -> Iterator[QueryBlock]:
    """The blocks of a document of `n_tokens`, in order; keys after a block's last query are never touched.

    `window` is the layer's sliding window in keys, the query's own included; None sees all keys before the query.
    Raises ValueError for a window or a block below 1.
    """
    if size < 1 or (window is not None and window < 1):
        raise ValueError(f"expected a block and a window of at least 1, got block {size} and window {window}")
    for start in range(0, n_tokens, size):
        first = 0 if window is None else max(0, start - window + 1)
        yield QueryBlock(start, min(start + size, n_tokens), first)


def visible_block(block: QueryBlock, window: int | None) -> Bool[Tensor, "q K"]:
    """True where a query of the block sees a key of the block: j ≤ i, and i − j < window where the layer slides."""
    queries = torch.arange(block.start, block.stop)[:, None]
    keys = torch.arange(block.first_key, block.stop)[None, :]
    seen = keys <= queries
    return seen if window is None else seen & (queries - keys < window)


def queries_seeing(n_tokens: int, window: int | None) -> Int[Tensor, " K"]:
    """How many of the queries j ≤ i ≤ T−2 see each key j ≤ T−2 (those that see it and predict a token): (T−1,)."""
    keys = torch.arange(n_tokens - 1)
    seen = n_tokens - 1 - keys
    return seen if window is None else seen.clamp_max_(window)
