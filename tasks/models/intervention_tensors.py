"""Tensors that an intervention is given: values that are frozen and hashable, and yet name a tensor per document.

A value is known by a digest of what it gives, or by the digests and the numbers of a rule, so that two conditions are
equal where they do the same, and a rate is one more number beside ranks that all rates share.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from storage.errors import UsageError
from tasks.kernels.zeroing import zero_ranked

End = Literal["highest", "lowest"]


class DocumentTensors(Protocol):
    """A tensor for each document. Frozen and hashable: equal where it gives the same."""

    def of(self, document: int) -> Tensor:
        """The document's tensor. Raises UsageError for a document that it has none for."""

    def block(self, document: int, queries: slice, keys: slice) -> Tensor:
        """Of a document's tensor (…, T, T) some queries and keys alone, so that no more than a block is made."""


class DocumentMask(DocumentTensors, Protocol):
    """A tensor of bool for each document."""

    def chooses(self, document: int) -> bool:
        """Whether it is true anywhere in the document."""


@dataclass(frozen=True)
class HeldTensors:
    """Tensors that are there already, known by a digest of their documents, dtypes, shapes and values."""

    digest: str
    tensors: Mapping[int, Tensor] = field(compare=False, repr=False)

    @classmethod
    def of_documents(cls, tensors: Mapping[int, Tensor]) -> HeldTensors:
        """Document → tensor, of any shape and dtype."""
        told = hashlib.sha256()
        for document in sorted(tensors):
            tensor = tensors[document].detach().cpu().contiguous()
            told.update(f"{document} {tensor.dtype} {tuple(tensor.shape)} ".encode())
            told.update(_bytes(tensor))
        return cls(told.hexdigest(), dict(tensors))

    def of(self, document: int) -> Tensor:
        """The document's tensor. Raises UsageError for a document that none is held for."""
        if document not in self.tensors:
            there = ", ".join(map(str, sorted(self.tensors)[:8])) or "none"
            raise UsageError("a document that the intervention is given a tensor for", got=str(document), where=there)
        return self.tensors[document]

    def block(self, document: int, queries: slice, keys: slice) -> Tensor:
        """Some queries and keys of a document's (…, T, T)."""
        return self.of(document)[..., queries, keys]

    def chooses(self, document: int) -> bool:
        """Whether anything in it is true, or not 0."""
        return bool(self.of(document).any())


@dataclass(frozen=True)
class RankedShare:
    """The k = ⌊rate·n⌋ highest or lowest of n ranked things, as a mask that is true where one is chosen.

    One sort serves all rates: they differ in `rate` alone.
    """

    ranks: DocumentTensors
    """Integers of any shape: 0 is the highest, −1 what is no candidate."""
    sizes: DocumentTensors
    """n, of a shape that broadcasts against the ranks: how many are ranked together."""
    rate: str
    """A decimal in (0, 1], as text: 0.7 of 170 is 119."""
    end: End = "highest"

    def __post_init__(self) -> None:
        try:
            rate = Fraction(self.rate)
        except ValueError:
            rate = Fraction(0)
        if not 0 < rate <= 1:
            raise UsageError("a rate in (0, 1], as a decimal", got=f"'{self.rate}'")
        if self.end not in ("highest", "lowest"):
            raise UsageError("highest or lowest", got=f"'{self.end}'")

    def of(self, document: int) -> Tensor:
        """A mask of the ranks' shape, bool."""
        return self._chosen(self.ranks.of(document), self.sizes.of(document))

    def block(self, document: int, queries: slice, keys: slice) -> Tensor:
        """The mask (…, q, K) of some queries and keys."""
        sizes = self.sizes.of(document)
        if sizes.ndim > 1 and sizes.shape[-2] > 1:
            sizes = sizes[..., queries, :]
        return self._chosen(self.ranks.block(document, queries, keys), sizes)

    def chooses(self, document: int) -> bool:
        """Whether ⌊rate·n⌋ is above 0 anywhere."""
        return bool(self._number(self.sizes.of(document)).any())

    def zero(self, document: int, values: Tensor, queries: slice, keys: slice) -> bool:
        """Zero the chosen of a block's values (H, q, K) in place, without a mask; whether that can be done here.

        It cannot on another device than the CPU, in half precision, or where what is ranked are not entries.
        """
        ranks, sizes = self.ranks.of(document), self.sizes.of(document)
        if values.device.type != "cpu" or values.dtype not in (torch.float32, torch.float64) or ranks.ndim != 3:
            return False
        bounds = (bound.to(ranks.dtype)[..., 0] for bound in self._bounds(sizes, ranks.dtype))
        low, high = (bound.expand(len(ranks), -1).contiguous().numpy() for bound in bounds)
        zero_ranked(values.numpy(), ranks.numpy(), low, high, queries.start, keys.start)
        return True

    def _chosen(self, ranks: Tensor, sizes: Tensor) -> Tensor:
        low, high = self._bounds(sizes, ranks.dtype)
        if self.end == "highest":
            return (ranks < high.to(ranks.dtype)).logical_and_(ranks >= 0)
        return ranks >= low.to(ranks.dtype)  # compared in the ranks' own dtype, which reads half as much

    def _bounds(self, sizes: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """[low, high) of the ranks that are chosen; the largest integer is no rank."""
        k, none = self._number(sizes), torch.iinfo(dtype).max
        if self.end == "highest":
            return torch.zeros_like(k), k
        return torch.where(k > 0, sizes.long() - k, none), torch.full_like(k, none)

    def _number(self, sizes: Tensor) -> Tensor:
        rate = Fraction(self.rate)
        return sizes.long() * rate.numerator // rate.denominator


def _bytes(tensor: Tensor) -> bytes:
    array: np.ndarray = tensor.flatten().view(torch.uint8).numpy() if tensor.numel() else np.empty(0, np.uint8)
    return array.tobytes()
