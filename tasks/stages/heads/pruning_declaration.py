"""The declarations of the stages that zero whole heads: what they read, their parameters, their tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import TYPE_CHECKING

from storage.errors import UnknownName, UsageError
from storage.numbers import tell_apart
from storage.tables import DOUBLE, INT, REAL, TEXT, table
from tasks.stages.multiscale.declaration import suits_an_ensemble
from tasks.stages.registry import Stage

if TYPE_CHECKING:
    from storage.store_shape import StoreShape

HEAD_ABLATION = table(
    "head_ablation",
    {"doc": INT, "layer": INT, "head": INT},
    nll_sum=DOUBLE,
    nll_clean_sum=DOUBLE,
    n_predicted=INT,
)
PRUNING = table(
    "pruning",
    {"doc": INT, "strategy": TEXT, "retention": REAL, "seed": INT},
    nll_sum=DOUBLE,
    nll_clean_sum=DOUBLE,
    n_predicted=INT,
    heads_kept=INT,
)

DEFAULT_CLASSES = ("reset", "mixer", "retriever")
"""The order in which the strategy `taxonomy` drops classes."""
TAXONOMY_ORDERS = {
    "taxonomy" if order == DEFAULT_CLASSES else "_".join(("taxonomy", *order)): order
    for order in permutations(DEFAULT_CLASSES)
}
"""Strategy → the classes in the order in which it drops them."""
RANDOM = "random"
STRATEGIES = (
    *TAXONOMY_ORDERS,
    *("weight_magnitude", "entropy_high", "entropy_low", "contribution", "f_score", RANDOM),
)
"""Those that a run takes unless it is told."""
H_STAR = "h_star"
"""Heads per layer in proportion to the effective rank of its attention over documents, which needs windows of one
length: so on request."""
KNOWN = (*STRATEGIES[:-1], H_STAR, RANDOM)
_MOST_SEEDS = 1_000


@dataclass(frozen=True)
class PruningParameters:
    """Parameters of the stage `pruning` (methods.md §2, "Pruning")."""

    strategies: tuple[str, ...] = STRATEGIES
    """In which order heads go."""
    retentions: tuple[float, ...] = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)
    """Shares of the heads that stay, in (0, 1]: ⌈r·n⌉ of n."""
    seeds: int = 5
    """Random orders of the control."""

    def __post_init__(self) -> None:
        for strategy in self.strategies:
            if strategy not in KNOWN:
                raise UnknownName.among("strategy", strategy, KNOWN, where="pruning.strategies")
        for name in ("strategies", "retentions"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                got = "none" if not values else f"{', '.join(map(str, values))}, of which some are twice"
                raise UsageError("values, each once", got=got, where=f"pruning.{name}")
        for retention in self.retentions:
            if not 0 < retention <= 1:
                raise UsageError("retentions in (0, 1]", got=str(retention), where="pruning.retentions")
        tell_apart(self.retentions, "retentions", "pruning.retentions")
        if not 1 <= self.seeds <= _MOST_SEEDS:
            raise UsageError(f"from 1 to {_MOST_SEEDS:,} seeds", got=str(self.seeds), where="pruning.seeds")


@dataclass(frozen=True)
class HeadAblationParameters:
    """The stage `head_ablation` has none: every head of every layer that the store keeps, alone."""


def suits(parameters: PruningParameters, shape: StoreShape, lengths: Sequence[int]) -> None:
    """UsageError where heads are to go by an effective rank that the capture does not have."""
    if H_STAR in parameters.strategies:
        suits_an_ensemble(shape, lengths)


PRUNING_STAGE = Stage(
    name="pruning",
    version=1,
    parameters=PruningParameters,
    reads=frozenset({"attention", "value", "residual"}),
    tables=(PRUNING,),
    needs_model=True,
    on_request=True,
    module="tasks.stages.heads.pruning",
    surveys=True,
    suits=suits,
)
HEAD_ABLATION_STAGE = Stage(
    name="head_ablation",
    version=1,
    parameters=HeadAblationParameters,
    reads=frozenset({"residual"}),
    tables=(HEAD_ABLATION,),
    needs_model=True,
    on_request=True,
    module="tasks.stages.heads.head_ablation",
    whole=frozenset(),
)
