"""Blocks of queries, and the keys that each may see."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor


class QueryBlocks:
    """Where the blocks of one forward pass begin and end."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._horizons: dict[int, tuple[Tensor, list[tuple[int, int, int, int]]]] = {}

    def of(self, n_queries: int, n_keys: int, mask: Tensor | None) -> list[tuple[int, int, int, int]]:
        """(first query, end, first key, end) of each block; worked out once per mask, which the layers share."""
        if mask is None:
            return [(s, min(s + self._size, n_queries), 0, n_keys) for s in range(0, n_queries, self._size)]
        if id(mask) not in self._horizons:  # the mask is kept beside its answer, so its id is not used again
            self._horizons[id(mask)] = (mask, list(_visible_blocks(mask, self._size)))
        return self._horizons[id(mask)][1]


def _visible_blocks(mask: Tensor, size: int) -> Iterator[tuple[int, int, int, int]]:
    """Blocks of `size` queries with the range of keys that any of their rows, in any document, may see.

    mask (B, 1, T, T): true where a key is seen, or 0 there and the dtype's minimum elsewhere. A block's own queries
    stay in the range, since some families lay a causal mask of their own over the last keys they are given.
    """
    n_queries, n_keys = mask.shape[-2:]
    seen_by = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min
    for start in range(0, n_queries, size):
        stop = min(start + size, n_queries)
        seen = seen_by[:, :, start:stop].flatten(0, 2).any(dim=0).nonzero().flatten()
        first, last = (int(seen[0]), int(seen[-1]) + 1) if len(seen) else (start, stop)
        yield start, stop, min(first, start), max(last, min(stop, n_keys))
