"""What is chosen, held against the model: parts that it does not have, and `auto` decided. Loads no torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from storage.errors import UsageError
from storage.numbers import spans
from tasks.capture.cost import ConfigShape, attention_bytes, attention_layers
from tasks.capture.kept import ATTENTION_KINDS, Chosen
from tasks.models.families import why_not

if TYPE_CHECKING:
    from tasks.capture.key import CaptureSettings

SAMPLE = 1024
"""Documents that decide, the corpus's first: the rest is like them, and a large corpus is not cut twice."""


def held_against(settings: CaptureSettings, shape: ConfigShape, window: int) -> CaptureSettings:
    """The settings with choices that leave nothing out taken as none, so that their key is the same.

    UsageError, naming it, for a layer, head or position that the model and its window do not have.
    """
    chosen, nothing = Chosen.of(asdict(settings)), dict[str, Any]()
    for name, numbers, n in (("layers", chosen.layers, shape.n_layers), ("heads", chosen.heads, shape.n_heads)):
        if numbers is not None and numbers[-1] >= n:
            raise UsageError(f"{name} from 0 to {n - 1}", got=str(numbers[-1]), where=name)
        if numbers is not None and len(numbers) == n:
            nothing[name] = None
    if chosen.layers is not None and not attention_layers(shape, chosen.layers):
        there = spans(attention_layers(shape, None))
        raise UsageError(f"layers of which one has attention ({there})", got=str(settings.layers), where="layers")
    if (positions := chosen.positions) is not None:
        if positions.furthest() > window:
            expected = (
                f"query positions from 0 to {window - 1}, or as many from the end, in a window of {window} tokens"
            )
            raise UsageError(expected, got=repr(settings.positions), where="positions")
        if positions.all_of(window):
            nothing["positions"] = None
    return replace(settings, **nothing)


def way_for(
    config: Mapping[str, Any], shape: ConfigShape, chosen: Chosen, computed: str, window: int, lengths: Iterable[int]
) -> str:
    """stored or rebuilt: the smaller before compression over the first documents, stored where both are the same size.

    stored also for a family that cannot be rebuilt, and where query and key would be kept more coarsely than they were
    computed: their rounding would move attention by more than its own would. lengths: of the documents, in tokens, of
    which at most SAMPLE are asked for; none, where even a whole window is smaller stored.
    """
    if why_not(config) is not None or _rounds(chosen, computed) or _stored_at_most(shape, chosen, window):
        return "stored"
    sizes = attention_bytes(shape, list(islice(lengths, SAMPLE)), chosen)
    return min(sizes, key=lambda way: sizes[way])


def _rounds(chosen: Chosen, computed: str) -> bool:
    """Whether query or key would lose something of the dtype that the model computes in."""
    return any(chosen.dtype_of[kind] not in ("float32", computed) for kind in ATTENTION_KINDS["rebuilt"])


def _stored_at_most(shape: ConfigShape, chosen: Chosen, window: int) -> bool:
    """Whether stored is the smaller for every length up to the window: it grows with T², query and key with T."""
    if chosen.positions is not None:  # it grows with T too
        return False
    sizes = attention_bytes(shape, [window], chosen)
    return sizes["stored"] <= sizes["rebuilt"]
