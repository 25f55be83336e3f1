"""The parameters of the stage `pruning`: the order in which heads are zeroed, and how many stay (methods.md §2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import TYPE_CHECKING, ClassVar

from storage.numbers import tell_apart
from tasks.stages.multiscale.ensemble_shape import require_ensemble
from tasks.stages.parameters import Parameters, parameter

if TYPE_CHECKING:
    from storage.store_shape import StoreShape

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
"""The strategies that a run takes by default."""
H_STAR = "h_star"
"""Heads per layer in proportion to the effective rank of its attention over documents, which needs windows of one
length: so on request."""
KNOWN = (*STRATEGIES[:-1], H_STAR, RANDOM)


@dataclass(frozen=True)
class PruningParameters(Parameters):
    """Parameters of the stage `pruning`."""

    stage: ClassVar[str] = "pruning"
    strategies: tuple[str, ...] = parameter(
        STRATEGIES,
        "the orders in which heads are zeroed; h_star, which needs windows of one length, on request",
        words=KNOWN,
    )
    retentions: tuple[float, ...] = parameter(
        (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2), "shares of the heads that stay: ⌈r·n⌉ of n", above=0, most=1
    )
    seeds: int = parameter(5, "random orders of the control", least=1, most=1_000)

    def __post_init__(self) -> None:
        super().__post_init__()
        tell_apart(self.retentions, "retentions", "pruning.retentions")

    def require_store(self, shape: StoreShape, lengths: Sequence[int]) -> None:
        """UsageError where heads are ordered by an effective rank that the capture does not have."""
        if H_STAR in self.strategies:
            require_ensemble(shape, lengths)
