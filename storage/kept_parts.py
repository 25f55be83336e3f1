"""Which heads and query positions a store keeps: how their kinds of tensor become smaller, and how a reader finds them.

Heads are the query heads; of keys and values those are kept that they look at. Positions are of the queries: of values
and keys every position is kept, since every key may be seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from storage.errors import UsageError
from storage.numbers import Positions, spans

BY_ROW = ("attention", "query", "sink_mass")
"""The kinds that have a row for each query."""

ALL_HEADS, ALL_POSITIONS = "all heads", "all query positions"
"""What a stage may need whole, as messages name it."""


@lru_cache
def _positions(text: str) -> Positions:
    return Positions.parse(text)


@dataclass(frozen=True)
class ChosenParts:
    """The heads and query positions that are kept; None for all."""

    n_heads: int
    heads: tuple[int, ...] | None = None
    positions: str | None = None
    """In the words of `Positions`."""

    def __post_init__(self) -> None:
        if self.heads is not None and not (self.heads and set(self.heads) <= set(range(self.n_heads))):
            raise ValueError(f"expected heads from 0 to {self.n_heads - 1}, got {self.heads}")
        if self.positions is not None:
            Positions.parse(self.positions)

    @property
    def all(self) -> bool:
        return self.heads is None and self.positions is None

    @property
    def whole(self) -> frozenset[str]:
        """What is kept whole, of ALL_HEADS and ALL_POSITIONS."""
        wholes = {ALL_HEADS: self.heads is None, ALL_POSITIONS: self.positions is None}
        return frozenset(name for name, whole in wholes.items() if whole)

    @property
    def kept_heads(self) -> tuple[int, ...]:
        """The query heads that are kept, in order, by the model's own numbers."""
        return tuple(range(self.n_heads)) if self.heads is None else self.heads

    def of(self, n_heads: int) -> tuple[int, ...]:
        """Of `n_heads` heads of values or keys, each of which serves as many query heads side by side, those kept."""
        return tuple(sorted({head * n_heads // self.n_heads for head in self.kept_heads}))

    def serving(self, n_heads: int) -> list[int]:
        """For each kept query head, where the head that serves it lies among those kept of `n_heads`."""
        kept = self.of(n_heads)
        return [kept.index(head * n_heads // self.n_heads) for head in self.kept_heads]

    def rows(self, length: int) -> tuple[int, ...]:
        """The query positions that are kept of a document of this length, in order."""
        return tuple(range(length)) if self.positions is None else _positions(self.positions).rows(length)

    def n_rows(self, length: int) -> int:
        """How many query positions are kept of a document of this length."""
        return length if self.positions is None else len(self.rows(length))

    def head_index(self, head: int) -> int:
        """Where a query head lies among those kept; UsageError naming them."""
        if head not in self.kept_heads:
            kept = f"a head that the store keeps ({spans(self.kept_heads)})"
            raise UsageError(f"a head from 0 to {self.n_heads - 1}" if self.heads is None else kept, got=str(head))
        return self.kept_heads.index(head)

    def row_index(self, position: int, length: int) -> int:
        """Where a query position lies among those kept of a document of this length; UsageError naming them."""
        rows = self.rows(length)
        if position not in rows:
            every = f"a position from 0 to {length - 1}"
            kept = f"a query position that the store keeps ({spans(rows) or 'none of this document'})"
            raise UsageError(every if self.positions is None else kept, got=str(position))
        return rows.index(position)

    def describe(self, kind: str, axes: tuple[str, ...], n_heads: int) -> dict[str, Any]:
        """What an array says of the heads and positions that it holds; nothing where it holds all.

        n_heads: how many heads of this kind the model has.
        """
        by_head, by_row = {"head", "kv_head"} & set(axes), kind in BY_ROW
        heads = {"heads": list(self.of(n_heads))} if by_head and self.heads is not None else {}
        return {**heads, **({"positions": self.positions} if by_row and self.positions is not None else {})}
