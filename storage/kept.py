"""What is kept of a capture: which layers, heads, query positions and kinds of tensor, in which dtypes.

Heads are the query heads; of keys and values those are kept that they look at. Positions are of the queries: of values
and keys every position is kept, since every key may be seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from storage.errors import UsageError
from storage.numbers import Positions, spans

DTYPES: Mapping[str, str] = {"float32": "<f4", "float16": "<f2", "bfloat16": "<u2"}
"""The dtypes of a capture, from fine to coarse, and how each lies in the store; bfloat16, which Zarr lacks, as its 16
bits."""

BY_ROW = ("attention", "query", "sink_mass")
"""The kinds that have a row for each query."""

ALL_HEADS, ALL_POSITIONS = "all heads", "all query positions"
"""What a stage may need whole, as messages name it."""


def bytes_of(dtype: str) -> int:
    """Bytes of one number of a dtype."""
    return int(DTYPES[dtype][-1])


@lru_cache
def _positions(text: str) -> Positions:
    return Positions.parse(text)


@dataclass(frozen=True)
class Kept:
    """What is kept of a capture. Numbers of layers and heads are the model's own, in order; None for all."""

    layers: tuple[int, ...] | None = None
    """Of the residual stream also what follows each of them."""
    heads: tuple[int, ...] | None = None
    positions: str | None = None
    """In the words of `Positions`; None for all."""
    dtypes: Mapping[str, str] = field(default_factory=dict)
    """The dtype of each kind that is kept."""

    def __post_init__(self) -> None:
        if self.positions is not None:
            Positions.parse(self.positions)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of tensor that are kept."""
        return tuple(self.dtypes)

    @property
    def every_head_and_position(self) -> bool:
        return self.heads is None and self.positions is None

    @property
    def whole(self) -> frozenset[str]:
        """What is kept whole, of ALL_HEADS and ALL_POSITIONS."""
        wholes = {ALL_HEADS: self.heads is None, ALL_POSITIONS: self.positions is None}
        return frozenset(name for name, whole in wholes.items() if whole)

    def query_heads(self, n_heads: int) -> tuple[int, ...]:
        """The query heads that are kept of a model with so many."""
        return tuple(range(n_heads)) if self.heads is None else self.heads

    def heads_of(self, n_heads: int, n_query_heads: int) -> tuple[int, ...]:
        """Of `n_heads` heads of values or keys, each of which serves as many query heads side by side, those kept."""
        return tuple(sorted({head * n_heads // n_query_heads for head in self.query_heads(n_query_heads)}))

    def serving(self, n_heads: int, n_query_heads: int) -> list[int]:
        """For each kept query head, where the head that serves it lies among those kept of `n_heads`."""
        kept = self.heads_of(n_heads, n_query_heads)
        return [kept.index(head * n_heads // n_query_heads) for head in self.query_heads(n_query_heads)]

    def rows(self, length: int) -> tuple[int, ...]:
        """The query positions that are kept of a document of this length, in order."""
        return tuple(range(length)) if self.positions is None else _positions(self.positions).rows(length)

    def n_rows(self, length: int) -> int:
        """How many query positions are kept of a document of this length."""
        return length if self.positions is None else len(self.rows(length))

    def head_index(self, head: int, n_heads: int) -> int:
        """Where a query head of a model with so many lies among those kept; UsageError naming them."""
        known = self.query_heads(n_heads)
        if head not in known:
            kept = f"a head that the store keeps ({spans(known)})"
            raise UsageError(f"a head from 0 to {n_heads - 1}" if self.heads is None else kept, got=str(head))
        return known.index(head)

    def row_index(self, position: int, length: int) -> int:
        """Where a query position lies among those kept of a document of this length; UsageError naming them."""
        rows = self.rows(length)
        if position not in rows:
            every = f"a position from 0 to {length - 1}"
            kept = f"a query position that the store keeps ({spans(rows) or 'none of this document'})"
            raise UsageError(every if self.positions is None else kept, got=str(position))
        return rows.index(position)

    def describe(self, kind: str, axes: tuple[str, ...], n_heads: int, n_query_heads: int) -> dict[str, Any]:
        """What an array says of the heads and positions that it holds; nothing where it holds all.

        n_heads: how many heads of this kind the model has.
        """
        by_head, by_row = {"head", "kv_head"} & set(axes), kind in BY_ROW
        heads = {"heads": list(self.heads_of(n_heads, n_query_heads))} if by_head and self.heads is not None else {}
        return {**heads, **({"positions": self.positions} if by_row and self.positions is not None else {})}
