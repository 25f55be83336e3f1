"""How what is kept of a forward pass is packed: the store's shape as the tap needs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from storage import triangles
from storage.kept import BY_ROW, Kept
from storage.rebuild import LayerTerms
from tasks.models.rebuild import sink_logits

if TYPE_CHECKING:
    from storage.store_shape import StoreShape
    from tasks.models.anatomy import Anatomy

_BY_DEFAULT = frozenset({"attention", "value", "output_input", "residual", "sink_mass", "gate"})


@dataclass(frozen=True)
class Packing:
    """Which kinds of which layers, heads and positions are kept, and in which dtype query and key are."""

    kinds: frozenset[str] = _BY_DEFAULT
    shape: StoreShape | None = None
    """Where something is chosen; None keeps all layers, heads and positions."""
    dtypes: Mapping[str, torch.dtype] = field(default_factory=dict)

    @classmethod
    def of(cls, shape: StoreShape) -> Packing:
        """What a store of this shape keeps."""
        return cls(frozenset(shape.dtypes), shape, {kind: getattr(torch, name) for kind, name in shape.dtypes.items()})

    def has(self, kind: str, layer: int) -> bool:
        return kind in self.kinds and (self.shape is None or layer in self.shape.layer_numbers(kind))

    @property
    def chosen(self) -> Kept | None:
        """What is kept, where heads or query positions are chosen; None where all are kept."""
        return None if self.shape is None or self.shape.stored.every_head_and_position else self.shape.stored

    def n_heads(self, anatomy: Anatomy) -> int:
        """Query heads whose attention is kept."""
        return anatomy.n_heads if self.chosen is None else len(self.chosen.query_heads(anatomy.n_heads))

    def entries(self, length: int, *, causal: bool) -> int:
        """Weights kept of one head for a document: its causal triangle, all, or the chosen rows of either."""
        if self.chosen is not None and self.shape is not None:
            return self.shape.entries(length)
        return triangles.entries(length) if causal else length**2

    def pack(self, alpha: Tensor, first_row: int, length: int, out: Tensor, *, causal: bool) -> None:
        """A block (H, q, K) of a document's attention, queries from `first_row` and keys from 0, into its entries.

        out (H', n): the document's, in the stored dtype; what is not kept of the block is left out.
        """
        end = first_row + alpha.shape[1]
        if self.chosen is None:
            self._pack_all(alpha, first_row, end, length, out, causal=causal)
            return
        kept = self.chosen.rows(length)
        before, rows = [row for row in kept if row < first_row], [row for row in kept if first_row <= row < end]
        if not rows:
            return
        if self.chosen.heads is not None:
            alpha = alpha[list(self.chosen.heads)]
        of_rows = alpha[:, [row - first_row for row in rows]]  # (H', R, K)
        if causal:
            starts = triangles.row_starts([*before, *rows])
            triangles.pack_chosen(of_rows, rows, out[:, starts[len(before)] : starts[-1]])
        else:
            out[:, len(before) * length : (len(before) + len(rows)) * length] = of_rows.flatten(1)

    @staticmethod
    def _pack_all(alpha: Tensor, first_row: int, end: int, length: int, out: Tensor, *, causal: bool) -> None:
        if causal:
            entries = slice(triangles.entries(first_row), triangles.entries(end))
            triangles.pack_rows(alpha, first_row, length, out=out[:, entries])
        else:
            out[:, first_row * length : end * length] = alpha.flatten(1)

    def part(self, kind: str, tensor: Tensor, lengths: Sequence[int]) -> Tensor:
        """What is kept of a kind's (N, …), documents of these lengths one after the other; attention comes packed."""
        if self.chosen is None or self.shape is None or kind in ("attention", "residual"):
            return tensor
        if kind in BY_ROW and self.chosen.positions is not None:
            starts = [0, *accumulate(lengths)]
            rows = [start + row for start, n in zip(starts, lengths, strict=False) for row in self.chosen.rows(n)]
            tensor = tensor[rows]
        return tensor[:, list(self.shape.heads_of(kind))] if self.chosen.heads else tensor

    def terms(self, anatomy: Anatomy, layer: int) -> LayerTerms:
        """How attention of a layer is rebuilt; ValueError where the store keeps no query and key."""
        if self.shape is None:
            raise ValueError("no query and key are kept")
        return self.shape.terms(layer, sink_logits(anatomy, layer))


EVERYTHING = Packing()
"""Attention as tapped, and all else, of every layer."""
