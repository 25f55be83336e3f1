"""The declaration of the stage `contributions`: what it reads, its parameters, its tables."""

from __future__ import annotations

from dataclasses import dataclass

from storage.errors import UsageError
from tasks.stages.contributions.tables import CONTRIBUTIONS_TABLES
from tasks.stages.registry import Stage

_LIMITS = {"edges": (1, 65_536), "bins": (1, 4_096), "resamples": (2, 100_000)}
"""What each may be, both ends included: beyond it arrays of that size would be made in vain."""


@dataclass(frozen=True)
class ContributionParameters:
    """Parameters of the stage `contributions` (methods.md §1)."""

    edges: int = 8
    """Entries of largest |cw_intra| kept per query row."""
    bins: int = 20
    """Equal bins of the sink rate over [0, 1] in `sink_curve`."""
    resamples: int = 2000
    """Bootstrap resamples of documents behind the interval of the curvature in `sink_fit`."""

    def __post_init__(self) -> None:
        for name, (least, most) in _LIMITS.items():
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise UsageError(f"an integer of at least {least}", got=repr(value), where=f"contributions.{name}")
            if value > most:
                raise UsageError(f"an integer of at most {most:,}", got=repr(value), where=f"contributions.{name}")


CONTRIBUTIONS = Stage(
    name="contributions",
    version=1,
    parameters=ContributionParameters,
    reads=frozenset({"attention", "value"}),
    tables=CONTRIBUTIONS_TABLES,
    needs_model=False,
    module="tasks.stages.contributions.steps",
)
