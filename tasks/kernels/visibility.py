"""Which keys a query sees, and the blocks of queries in which every kernel of a document runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

QUERY_BLOCK = 64
"""Queries a block: 9 heads × 64 queries × 512 keys in float32 stay in a core's second-level cache."""


@dataclass(frozen=True)
class QueryBlock:
    """Queries [start, stop) and the keys [first_key, last_key) that any of them may see."""

    start: int
    stop: int
    first_key: int
    last_key: int

    @property
    def rows(self) -> slice:
        return slice(self.start, self.stop)

    @property
    def keys(self) -> slice:
        return slice(self.first_key, self.last_key)


@dataclass(frozen=True)
class Visibility:
    """The keys that each query of a layer sees, always one run of neighbours: [first_keys(T)[i], last_keys(T)[i]).

    Causal: keys j ≤ i with i − j < window. Not causal, as of an encoder: all keys of the document. Everything that a
    kernel must know of either follows from the two ends and from which queries count towards a key's score. Raises
    ValueError for a window below 1, and for one without causality, which no family has.
    """

    window: int | None = None
    """The layer's sliding window in keys, the query's own included; None sees all keys before the query."""
    causal: bool = True

    def __post_init__(self) -> None:
        if self.window is not None and (self.window < 1 or not self.causal):
            of = "causal" if self.causal else "bidirectional"
            raise ValueError(
                f"expected a window of at least 1, of causal attention, got {self.window} of {of} attention"
            )

    def first_keys(self, n_tokens: int) -> Int[Tensor, " T"]:
        """The first key that each query sees."""
        if self.window is None:
            return torch.zeros(n_tokens, dtype=torch.int64)
        return (torch.arange(n_tokens) + 1 - self.window).clamp_min_(0)

    def last_keys(self, n_tokens: int) -> Int[Tensor, " T"]:
        """One more than the last key that each query sees: i + 1, or T without causality.

        It is also how many keys uniform attention without a window would be spread over.
        """
        return torch.arange(1, n_tokens + 1) if self.causal else torch.full((n_tokens,), n_tokens)

    def counted(self, n_tokens: int) -> int:
        """Queries 0 … n−1 count towards a key's score, and keys 0 … n−1 are those that they see.

        Where tokens are predicted, n = T−1: the last position predicts nothing. An encoder predicts no next token
        anywhere, so there is no such query to leave out: n = T.
        """
        return n_tokens - 1 if self.causal else n_tokens

    def seers(self, n_tokens: int) -> tuple[Int[Tensor, " n"], Int[Tensor, " n"]]:
        """The run of queries [first, last) of those counted that see each key 0 … n−1."""
        n = self.counted(n_tokens)
        if not self.causal:
            return torch.zeros(n, dtype=torch.int64), torch.full((n,), n)
        first = torch.arange(n)
        return first, torch.full((n,), n) if self.window is None else (first + self.window).clamp_max_(n)

    def sink_queries(self, n_tokens: int) -> slice:
        """The queries i ≥ 1 that see key 0."""
        return slice(1, n_tokens if self.window is None else min(n_tokens, self.window))

    def blocks(self, n_tokens: int, size: int = QUERY_BLOCK) -> Iterator[QueryBlock]:
        """The blocks of a document of `n_tokens`, in order; keys that no query of a block sees are never touched.

        Raises ValueError for a block below 1.
        """
        if size < 1:
            raise ValueError(f"expected a block of at least 1, got {size}")
        for start in range(0, n_tokens, size):
            stop = min(start + size, n_tokens)
            first = 0 if self.window is None else max(0, start - self.window + 1)
            yield QueryBlock(start, stop, first, stop if self.causal else n_tokens)

    def inside(self, block: QueryBlock, n_tokens: int) -> Bool[Tensor, "q K"]:
        """True where a query of the block sees a key of the block."""
        keys = torch.arange(block.first_key, block.last_key)[None, :]
        first, last = (ends[block.rows, None] for ends in (self.first_keys(n_tokens), self.last_keys(n_tokens)))
        return (keys >= first) & (keys < last)

    def hidden_last(self, block: QueryBlock, n_tokens: int) -> Bool[np.ndarray, "q n"]:
        """True where a query does not see one of the last n keys of the block; all see all keys before those."""
        q = block.stop - block.start
        n = 0 if not self.causal else q if self.window is None else block.last_key - block.first_key
        own = QueryBlock(block.start, block.stop, block.last_key - n, block.last_key)
        return ~self.inside(own, n_tokens).numpy()


CAUSAL = Visibility()
"""All keys up to the query's own."""
ALL_KEYS = Visibility(causal=False)
"""All keys of the document, as an encoder's queries see them."""
