"""The declarations of the stages `selection` and `taxonomy`: what they read, their parameters, their tables."""

from __future__ import annotations

from dataclasses import dataclass

from storage.errors import UsageError
from tasks.stages.heads.tables import SELECTION_ROWS, SINK_STATISTICS, TAXONOMY_ROWS
from tasks.stages.registry import Stage

RANKINGS = ("attention", "contribution")
DISTANCES = ("euclidean", "cosine")
SINKS = ("included", "excluded")
_MOST = {"n": 4_096, "queries": 1_000_000, "random_rankings": 1_024, "random_queries": 65_536}
"""What each may be at most: beyond it arrays of that size would be made in vain."""


@dataclass(frozen=True)
class SelectionParameters:
    """Parameters of the stage `selection` (methods.md §2)."""

    queries: int | str = "every"
    """The queries of each document: `every`, `final` (the last position alone), or so many, drawn by the seed."""
    rankings: tuple[str, ...] = RANKINGS
    """By what a query's keys are ranked: attention α, contribution α‖v‖."""
    distances: tuple[str, ...] = DISTANCES
    """Distances from the aggregate: euclidean, cosine."""
    sinks: tuple[str, ...] = SINKS
    """Whether position 0 is a candidate: included, excluded."""
    n: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    """Sizes N of a selection."""
    random_rankings: int = 16
    """Random rankings of the control, each shared by all N; 0 for none."""
    random_queries: int = 32
    """Queries of each document and layer, of those chosen, for which the control is drawn; 0 for none."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "queries", _queries(self.queries))
        for name, words in (("rankings", RANKINGS), ("distances", DISTANCES), ("sinks", SINKS)):
            object.__setattr__(self, name, _chosen(name, getattr(self, name), words))
        if not self.n:
            raise UsageError("at least one size", got="none", where="selection.n")
        for size in self.n:
            _require_in("n", size, 1)
        object.__setattr__(self, "n", tuple(sorted(set(self.n))))
        for name in ("random_rankings", "random_queries"):
            _require_in(name, getattr(self, name), 0)


def _queries(value: int | str) -> int | str:
    """The parameter as a word or a number. Raises UsageError for anything else."""
    if value in ("every", "final"):
        return value
    text = str(value)
    if isinstance(value, bool) or not text.isdecimal():
        raise UsageError("every, final, or a number of queries", got=repr(value), where="selection.queries")
    _require_in("queries", int(text), 1)
    return int(text)


def _chosen(name: str, given: tuple[str, ...], words: tuple[str, ...]) -> tuple[str, ...]:
    """The words given, in their own order, so that the order in which they are written makes no other run."""
    for word in given:
        if word not in words:
            raise UsageError(f"some of {', '.join(words)}", got=repr(word), where=f"selection.{name}")
    if not given:
        raise UsageError(f"some of {', '.join(words)}", got="none", where=f"selection.{name}")
    return tuple(word for word in words if word in given)


def _require_in(name: str, value: int, least: int) -> None:
    if value < least:
        raise UsageError(f"an integer of at least {least}", got=repr(value), where=f"selection.{name}")
    if value > _MOST[name]:
        raise UsageError(f"an integer of at most {_MOST[name]:,}", got=repr(value), where=f"selection.{name}")


@dataclass(frozen=True)
class TaxonomyParameters:
    """The stage `taxonomy` has none: all three rules are counted at once."""


SELECTION = Stage(
    name="selection",
    version=1,
    parameters=SelectionParameters,
    reads=frozenset({"attention", "value"}),
    tables=(SELECTION_ROWS, SINK_STATISTICS),
    needs_model=False,
    on_request=True,
    module="tasks.stages.heads.selection",
)
TAXONOMY = Stage(
    name="taxonomy",
    version=1,
    parameters=TaxonomyParameters,
    reads=frozenset({"attention", "value"}),
    tables=(TAXONOMY_ROWS,),
    needs_model=False,
    module="tasks.stages.heads.taxonomy",
)
