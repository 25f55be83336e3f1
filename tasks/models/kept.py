"""What of a forward pass is kept: the store's shape as the tap needs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from storage.rebuild import LayerTerms
from tasks.models.rebuilding import sink_logits

if TYPE_CHECKING:
    from storage.store_shape import StoreShape
    from tasks.models.families import Anatomy

_BY_DEFAULT = frozenset({"attention", "value", "output_input", "residual", "sink_mass", "gate"})


@dataclass(frozen=True)
class Kept:
    """Which kinds of which layers are kept, and in which dtype query and key are."""

    kinds: frozenset[str] = _BY_DEFAULT
    shape: StoreShape | None = None
    """Where some layers or kinds are chosen; None keeps all layers."""
    dtypes: Mapping[str, torch.dtype] = field(default_factory=dict)

    @classmethod
    def of(cls, shape: StoreShape) -> Kept:
        """What a store of this shape keeps."""
        return cls(frozenset(shape.dtypes), shape, {kind: getattr(torch, name) for kind, name in shape.dtypes.items()})

    def has(self, kind: str, layer: int) -> bool:
        return kind in self.kinds and (self.shape is None or layer in self.shape.layer_numbers(kind))

    def terms(self, anatomy: Anatomy, layer: int) -> LayerTerms:
        """How attention of a layer is rebuilt; ValueError where the store keeps no query and key."""
        if self.shape is None:
            raise ValueError("no query and key are kept")
        return self.shape.terms(layer, sink_logits(anatomy, layer))


EVERYTHING = Kept()
"""Attention as tapped, and all else, of every layer."""
