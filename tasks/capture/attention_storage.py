"""How attention is kept: choices compared with the model's sizes, and what decides `auto`. Loads no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from storage.errors import UsageError
from storage.numbers import Positions, spans
from tasks.capture.cost import ConfigShape, attention_bytes, attention_layers
from tasks.capture.kept import ATTENTION_KINDS, kept_of, store_dtypes
from tasks.models.families import why_not

if TYPE_CHECKING:
    from tasks.capture.settings import CaptureSettings

SAMPLE = 1024
"""Documents that decide, the corpus's first: the rest is like them, and a large corpus is not cut twice."""


def fit_to_model(settings: CaptureSettings, shape: ConfigShape, window: int) -> CaptureSettings:
    """The settings, checked against the model; a choice that leaves nothing out becomes none, so that the key is the
    same.

    UsageError, naming it, for a layer, head or position that the model and its window do not have.
    """
    kept, nothing = kept_of(settings.model_dump()), dict[str, Any]()
    for name, numbers, n in (("layers", kept.layers, shape.n_layers), ("heads", kept.heads, shape.n_heads)):
        if numbers is not None and numbers[-1] >= n:
            raise UsageError(f"{name} from 0 to {n - 1}", got=str(numbers[-1]), where=name)
        if numbers is not None and len(numbers) == n:
            nothing[name] = None
    if kept.layers is not None and not attention_layers(shape, kept.layers):
        there = spans(attention_layers(shape, None))
        raise UsageError(f"layers of which one has attention ({there})", got=str(settings.layers), where="layers")
    if kept.positions is not None:
        positions = Positions.parse(kept.positions)
        if positions.furthest() > window:
            expected = (
                f"query positions from 0 to {window - 1}, or as many from the end, in a window of {window} tokens"
            )
            raise UsageError(expected, got=repr(settings.positions), where="positions")
        if positions.all_of(window):
            nothing["positions"] = None
    return settings.changed(**nothing)


def stored_for_any_length(
    config: Mapping[str, Any], shape: ConfigShape, settings: Mapping[str, Any], window: int
) -> bool:
    """Whether attention is `stored` whatever the documents' lengths.

    So it is for a family that cannot be rebuilt; where query and key would be kept more coarsely than they were
    computed, since their rounding would move attention by more than its own would; and where even a whole window is
    smaller stored.
    """
    return why_not(config) is not None or _rounds(settings) or _stored_at_most(shape, settings, window)


def smaller_storage(shape: ConfigShape, lengths: Sequence[int], settings: Mapping[str, Any]) -> str:
    """stored or rebuilt: the smaller before compression over documents of these lengths; stored where both are the same
    size."""
    sizes = attention_bytes(shape, list(lengths), settings)
    return min(sizes, key=lambda storage: sizes[storage])


def _rounds(settings: Mapping[str, Any]) -> bool:
    """Whether query or key would lose something of the dtype that the model computes in."""
    dtypes, computed = store_dtypes(settings["store_dtype"]), settings["dtype"]
    return any(dtypes[kind] not in ("float32", computed) for kind in ATTENTION_KINDS["rebuilt"])


def _stored_at_most(shape: ConfigShape, settings: Mapping[str, Any], window: int) -> bool:
    """Whether stored is the smaller for every length up to the window: it grows with T², query and key with T."""
    if settings.get("positions") is not None:  # it grows with T too
        return False
    sizes = attention_bytes(shape, [window], settings)
    return sizes["stored"] <= sizes["rebuilt"]
