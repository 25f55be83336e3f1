"""An attention field seen along the causal lag τ = i − j: which entries it has, and how they lie side by side."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from jaxtyping import Float64, Int64


class LagField:
    """The entries of a causal field that a query can see, row by row, keys ascending: what a snapshot consists of.

    n_tokens: T. window: how many keys back a query sees, itself among them; None for all. The inner product of two
    fields over these n entries is the one over T×T, since all others are 0.
    """

    def __init__(self, n_tokens: int, window: int | None = None) -> None:
        self.n_tokens = n_tokens
        seen = np.tril(np.ones((n_tokens, n_tokens), bool))
        if window is not None:
            seen &= ~np.tril(np.ones_like(seen), -window)
        self.flat: Int64[np.ndarray, " n"] = np.flatnonzero(seen)
        """Where each entry lies in the flattened T×T field."""

    def __len__(self) -> int:
        return len(self.flat)

    @cached_property
    def row(self) -> Int64[np.ndarray, " n"]:
        """The query i of each entry."""
        return self.flat // self.n_tokens

    @cached_property
    def lag(self) -> Int64[np.ndarray, " n"]:
        """τ = i − j of each entry, 0 … T−1."""
        return self.row - self.flat % self.n_tokens

    @cached_property
    def starts(self) -> Int64[np.ndarray, " T1"]:
        """Where the entries of each query begin, and where the last end."""
        return np.searchsorted(self.row, np.arange(self.n_tokens + 1))

    @cached_property
    def _of_triangle(self) -> Int64[np.ndarray, " n"]:
        """Where each entry lies in the packed triangle, entry i(i+1)/2 + j."""
        return self.row * (self.row + 1) // 2 + self.flat % self.n_tokens

    def select(self, triangle: Float64[np.ndarray, " m"]) -> Float64[np.ndarray, " n"]:
        """The entries of a packed triangle, T(T+1)/2 values row by row: all of them without a window."""
        return triangle if len(self) == len(triangle) else triangle[self._of_triangle]

    def pack(self, field: Float64[np.ndarray, "*s T T"]) -> Float64[np.ndarray, "*s n"]:
        """The entries of T×T fields."""
        return field.reshape(*field.shape[:-2], -1)[..., self.flat]

    def unpack(self, packed: Float64[np.ndarray, "*s n"]) -> Float64[np.ndarray, "*s T T"]:
        """T×T fields, 0 where nothing is seen."""
        full = np.zeros((*packed.shape[:-1], self.n_tokens**2))
        full[..., self.flat] = packed
        return full.reshape(*packed.shape[:-1], self.n_tokens, self.n_tokens)

    def profile(self, packed: Float64[np.ndarray, " n"]) -> Float64[np.ndarray, " T"]:
        """The mean over queries at each lag; 0 at lags that none sees."""
        count = np.bincount(self.lag, minlength=self.n_tokens)
        return np.bincount(self.lag, packed, self.n_tokens) / np.maximum(count, 1)


def lag_signals(field: Float64[np.ndarray, "*s T T"]) -> Float64[np.ndarray, "*s T T"]:
    """Entry (i, τ) is the field at (i, i − τ): each query's weights by how far back they look; 0 for τ > i."""
    n_tokens = field.shape[-1]
    query, lag = np.indices((n_tokens, n_tokens))
    flat = np.where(lag <= query, query * n_tokens + query - lag, 0)
    signals = field.reshape(*field.shape[:-2], -1)[..., flat]
    return np.where(lag <= query, signals, 0.0)
