"""How attention is kept where nobody says: `auto` decided, before anything is captured. Loads no torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from tasks.chosen import ATTENTION_KINDS, Chosen
from tasks.estimates import ConfigShape, attention_bytes
from tasks.models.rebuildable import why_not

SAMPLE = 1024
"""Documents that decide, the corpus's first: the rest is like them, and a large corpus is not cut twice."""


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
    sizes = attention_bytes(shape, [window], chosen)
    return sizes["stored"] <= sizes["rebuilt"]
