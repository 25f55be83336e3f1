"""What of a capture is kept, as a user writes it: how attention is, which layers, heads, positions, kinds, dtypes.

Loads no torch, so that `plan` answers at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from storage.errors import UnknownName, UsageError
from storage.kept import DTYPES, Kept
from storage.numbers import Positions, number_set, parts

WAYS = ("stored", "rebuilt", "none", "auto")
"""How attention is kept: as tapped; as the query and key that it is rebuilt from; not at all. auto is one of the first
two, which planning decides."""

ATTENTION_KINDS: Mapping[str, tuple[str, ...]] = {"stored": ("attention",), "rebuilt": ("query", "key"), "none": ()}
OTHER_KINDS = ("value", "output_input", "residual")
"""The kinds that may be chosen; attention has a setting of its own, and the learned sinks' mass is kept beside it,
and the heads' gate beside the value."""

KINDS = ("attention", "query", "key", *OTHER_KINDS, "sink_mass", "gate")


def kept_of(
    settings: Mapping[str, Any], *, attention: str | None = None, sinks: bool = False, gated: bool = False
) -> Kept:
    """What a capture of these settings keeps; later settings may be absent in a record of an earlier version.

    attention: stored, rebuilt or none in place of the settings' own; `auto` that is not decided adds no kind.
    sinks, gated: whether the family has learned sinks, and gates its heads.
    """
    layers, heads, positions = (settings.get(name) for name in ("layers", "heads", "positions"))
    attention = attention or settings["attention"]
    others = _other_kinds(settings)
    sink_mass = ("sink_mass",) if sinks and attention == "stored" else ()
    gate = ("gate",) if gated and "value" in others else ()
    dtypes = store_dtypes(settings["store_dtype"])
    return Kept(
        layers=None if layers is None else number_set(layers, "layers"),
        heads=None if heads is None else number_set(heads, "heads"),
        positions=None if positions is None else str(Positions.parse(positions)),
        dtypes={kind: dtypes[kind] for kind in (*ATTENTION_KINDS.get(attention, ()), *others, *sink_mass, *gate)},
    )


def offered_by(settings: Mapping[str, Any]) -> frozenset[str]:
    """What can be read from such a store, whatever the family: kinds, attention also where it is rebuilt, and whether
    it has all heads and all query positions."""
    kept, attention = kept_of(settings), settings["attention"]
    with_attention = {"attention", "sink_mass"} if attention != "none" else set()
    return frozenset({*kept.kinds, *with_attention}) | kept.whole


def _other_kinds(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """The kinds that are kept besides attention."""
    keep = settings.get("keep")
    return OTHER_KINDS if keep is None else tuple(kind for kind in OTHER_KINDS if kind in parts(keep))


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
