"""How much of what a layer's queries see is masked at a rate, from ranks and their sizes."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import torch
from jaxtyping import Int
from torch import Tensor

from tasks.kernels.visibility import Visibility


@dataclass(frozen=True)
class MaskedEntries:
    """Entries (i, j) that go when the highest or lowest k = ⌊rate·n⌋ of what is ranked go.

    Of the queries that count: a key that is dropped goes for every query that sees it.
    """

    entries: int
    """All that there are, over heads."""
    sizes: Int[Tensor, " n"]
    """How many are ranked together, each n."""
    by_rank: Int[Tensor, "n ranks"] | None
    """Entries behind the k highest keys of a ranking, k = 0 … its size; None where entries themselves are ranked."""

    @classmethod
    def of_entries(cls, sizes: Int[Tensor, "H q 1"], n_tokens: int, visibility: Visibility) -> MaskedEntries:
        """Ranked entries: each that goes is one. Sizes as `entry_ranks` and `row_ranks` give them."""
        first, last = visibility.seers(n_tokens)
        return cls(len(sizes) * int((last - first).sum()), sizes.flatten(), None)

    @classmethod
    def of_tokens(cls, ranks: Int[Tensor, "H T"], sizes: Int[Tensor, "H 1"], visibility: Visibility) -> MaskedEntries:
        """Ranked keys: with each go the entries of all queries that see it. As `token_ranks` gives them."""
        n_tokens, n = ranks.shape[1], int(sizes[0, 0])
        first, last = visibility.seers(n_tokens)
        seers = torch.zeros(n_tokens, dtype=torch.int64)
        seers[: len(first)] = last - first
        order = ranks.argsort(dim=1)[:, n_tokens - n :]  # the highest first; behind −1, which is no candidate
        by_rank = torch.nn.functional.pad(seers[order].cumsum(1), (1, 0))
        return cls(len(ranks) * int(seers.sum()), sizes.flatten(), by_rank)

    def gone(self, rate: float, *, highest: bool) -> int:
        """How many entries go at a rate in (0, 1]."""
        exact = Fraction(repr(rate))
        k = self.sizes * exact.numerator // exact.denominator
        if self.by_rank is None:
            return int(k.sum())
        if highest:
            return int(self.by_rank.gather(1, k[:, None]).sum())
        return int((self.by_rank[:, -1:] - self.by_rank.gather(1, (self.sizes - k)[:, None])).sum())
