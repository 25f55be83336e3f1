"""What of a capture is kept, as a user writes it: how attention is, which layers, heads, positions, kinds, dtypes.

Loads no torch, so that `plan` answers at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from storage.errors import UnknownName, UsageError
from storage.kept_parts import ALL_HEADS, ALL_POSITIONS
from storage.numbers import Positions, number_set, parts

DTYPES = ("float32", "float16", "bfloat16")
WAYS = ("stored", "rebuilt", "none", "auto")
"""How attention is kept: as tapped; as the query and key that it is rebuilt from; not at all. auto is one of the first
two, which planning decides."""

ATTENTION_KINDS: Mapping[str, tuple[str, ...]] = {"stored": ("attention",), "rebuilt": ("query", "key"), "none": ()}
OTHER_KINDS = ("value", "output_input", "residual")
"""The kinds that may be chosen; attention has a setting of its own, and the learned sinks' mass is kept beside it,
and the heads' gate beside the value."""

KINDS = ("attention", "query", "key", *OTHER_KINDS, "sink_mass", "gate")


@dataclass(frozen=True)
class Chosen:
    """The choices of a capture's settings, taken apart."""

    attention: str
    """stored | rebuilt | none"""
    layers: tuple[int, ...] | None
    """The layers that are kept; None for all."""
    kinds: tuple[str, ...]
    """The kinds that are kept besides attention."""
    dtype_of: Mapping[str, str]
    """Every kind, kept or not, and its dtype."""
    heads: tuple[int, ...] | None = None
    """The query heads that are kept, and of keys and values those that they look at; None for all."""
    positions: Positions | None = None
    """The query positions whose attention is kept; None for all."""

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Chosen:
        """The choices of a capture's settings, of which later ones may be absent in a record of an earlier version."""
        layers, keep = settings.get("layers"), settings.get("keep")
        kinds = OTHER_KINDS if keep is None else tuple(kind for kind in OTHER_KINDS if kind in parts(keep))
        numbers = None if layers is None else number_set(layers, "layers")
        heads, positions = settings.get("heads"), settings.get("positions")
        return cls(
            settings["attention"],
            numbers,
            kinds,
            store_dtypes(settings["store_dtype"]),
            None if heads is None else number_set(heads, "heads"),
            None if positions is None else Positions.parse(positions),
        )

    def dtypes(self, *, sinks: bool, gated: bool = False) -> dict[str, str]:
        """What the store keeps: each kind and its dtype. `sinks`, `gated`: whether the family has them."""
        attention = ATTENTION_KINDS[self.attention]
        kept = (*attention, *self.kinds, *(("sink_mass",) if sinks and self.attention == "stored" else ()))
        kept = (*kept, *(("gate",) if gated and "value" in self.kinds else ()))
        return {kind: self.dtype_of[kind] for kind in kept}

    def offered(self) -> frozenset[str]:
        """What can be read from such a store, whatever the family: kinds, attention also where it is rebuilt, and
        whether it has all heads and all query positions."""
        rebuilt = {"attention"} if self.attention in ("rebuilt", "auto") else set()
        kept = () if self.attention == "auto" else ATTENTION_KINDS[self.attention]
        kinds = {*kept, *self.kinds, *rebuilt, *(("sink_mass",) if self.attention != "none" else ())}
        wholes = {ALL_HEADS: self.heads is None, ALL_POSITIONS: self.positions is None}
        return frozenset({*kinds, *(name for name, whole in wholes.items() if whole)})


def canonical_kinds(text: str) -> str | None:
    """The kinds that are kept besides attention, in one order; None for all. UnknownName for any other."""
    names = parts(text)
    for name in names:
        if name not in OTHER_KINDS:
            raise UnknownName.among("kind of tensor to keep", name, OTHER_KINDS, where="keep")
    return None if set(names) == set(OTHER_KINDS) else ",".join(kind for kind in OTHER_KINDS if kind in names)


def store_dtypes(text: str) -> dict[str, str]:
    """`float16` or `attention=float16,residual=float32` as the dtype of every kind; float32 where nothing is said.

    `attention` also stands for the query and key that it is rebuilt from. Raises UnknownName or UsageError.
    """
    base, by_kind, said = "float32", dict[str, str](), set[str]()
    for part in parts(text):
        kind, equals, dtype = (piece.strip() for piece in part.rpartition("="))
        if dtype not in DTYPES:
            raise UsageError(f"one of {', '.join(DTYPES)}", got=repr(dtype), where="store_dtype")
        if equals and kind not in KINDS:
            raise UnknownName.among("kind of tensor", kind, KINDS, where="store_dtype")
        if kind in said:
            expected = f"one dtype for {kind}" if equals else "one dtype for the kinds that are not named"
            raise UsageError(expected, got=repr(text), where="store_dtype")
        said.add(kind)
        if equals:
            by_kind[kind] = dtype
        else:
            base = dtype
    if not parts(text):
        raise UsageError(f"one of {', '.join(DTYPES)}", got=repr(text), where="store_dtype")
    attention = by_kind.get("attention", base)
    defaults = {"query": attention, "key": attention}
    return {kind: by_kind.get(kind, defaults.get(kind, base)) for kind in KINDS}


def canonical_dtypes(text: str) -> str:
    """The same dtypes always in the same words: one where all are the same, else each kind's that is not float32.

    Query and key are named where they differ from attention.
    """
    dtypes = store_dtypes(text)
    if len(set(dtypes.values())) == 1:
        return dtypes["attention"]
    usual = {**dict.fromkeys(KINDS, "float32"), **dict.fromkeys(ATTENTION_KINDS["rebuilt"], dtypes["attention"])}
    return ",".join(f"{kind}={dtype}" for kind, dtype in dtypes.items() if dtype != usual[kind])
