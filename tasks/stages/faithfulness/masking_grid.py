"""The grid of masking: which conditions there are, in the words of the tables (methods.md §1).

Cells that mask the same entries by construction share one `Ranking` and `rate`, and are run once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import product
from typing import TYPE_CHECKING, Any

from storage.errors import UsageError
from storage.numbers import number_set, tell_apart
from storage.tables import FLAG, INT, LAYER_SET, REAL, one_of
from tasks.stages.parameters import Parameters, parameter

if TYPE_CHECKING:
    from storage.store_shape import StoreShape
    from tasks.models.intervention_tensors import End

SCOPES: tuple[str, ...] = ("entry", "token", "row", "layer_token")
TOKEN_SCOPES = ("token", "layer_token")
HEAD_SCORES = ("raw", "vw", "vwon", "cw_intra", "cw_inter")
LAYER_SCORES = ("norm", "alti", "rollout")
"""One per (layer, i, j), without heads: of the scope layer_token alone."""
RANDOM = "random"
SCORES = (*HEAD_SCORES, *LAYER_SCORES, RANDOM)
_SIGNED = ("cw_intra", "cw_inter")
"""The scores that may be negative: for the others, signed and absolute rank alike."""
DIRECTIONS: dict[str, End] = {"comprehensiveness": "highest", "sufficiency": "lowest"}
SIGNS, REDUCES = ("absolute", "signed"), ("mean", "sum")
NO_REDUCE = "none"
"""What stands in the column `reduce` where entries are ranked, which nothing reduces."""
EACH, ALL = "each", "all"

KEYS = {
    **{"scope": one_of(*SCOPES), "reduce": one_of(*REDUCES, NO_REDUCE), "direction": one_of(*DIRECTIONS)},
    **{"sign": one_of(*SIGNS), "keep_first": FLAG, "layers": LAYER_SET, "score": one_of(*SCORES)},
    **{"draw": INT, "rate": REAL},
}
"""The columns that name a condition, in the tables masking and choices."""


@dataclass(frozen=True)
class Ranking:
    """What is ranked by what: all rates and both directions of it come from one sort."""

    scope: str
    score: str
    reduce: str = NO_REDUCE
    sign: str = "absolute"
    keep_first: bool = False
    draw: int = 0

    def canonical(self) -> Ranking:
        """The same for rankings that are alike by construction.

        A score that is never negative ranks alike signed or not; inside a row vw and vwon differ by the row's own ‖o‖;
        random numbers know no sum.
        """
        score = "vw" if (self.scope, self.score) == ("row", "vwon") else self.score
        sign = self.sign if score in _SIGNED else "absolute"
        reduce = NO_REDUCE if score == RANDOM else self.reduce
        return Ranking(self.scope, score, reduce, sign, self.keep_first, self.draw)


@dataclass(frozen=True)
class Cell:
    """One condition."""

    ranking: Ranking
    direction: str
    layers: tuple[int, ...] | str
    """Layers that are masked at once; `all` of those that the store keeps, `each` of them alone."""
    rate: float

    @property
    def end(self) -> End:
        return DIRECTIONS[self.direction]

    def columns(self) -> dict[str, Any]:
        """The values of KEYS but `layers`, which are named when the store is known."""
        named = {f.name: getattr(self.ranking, f.name) for f in fields(Ranking)}
        return {**named, "direction": self.direction, "rate": self.rate}


RANKED = "what is ranked: a head's entries, its keys (token), the keys of each query (row), or a layer's keys"
RANKED_BY = "the scores by which it is ranked; norm, alti and rollout are of layer_token alone"


@dataclass(frozen=True)
class MaskingGrid(Parameters):
    """Which cells there are: what a user may choose of a grid. The defaults are methods.md's."""

    scopes: tuple[str, ...] = parameter(SCOPES, RANKED, words=SCOPES)
    scores: tuple[str, ...] = parameter(SCORES, RANKED_BY, words=SCORES)
    rates: tuple[float, ...] = parameter(
        (0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9),
        "shares of the candidates that are masked: ⌊rate·n⌋ of n",
        above=0,
        most=1,
    )
    directions: tuple[str, ...] = parameter(
        tuple(DIRECTIONS),
        "masked: the highest-ranked (comprehensiveness), the lowest-ranked (sufficiency)",
        words=tuple(DIRECTIONS),
    )
    reduce: tuple[str, ...] = parameter(
        ("sum",),
        "a token's score from its entries': sum favours early keys, which many queries see, mean late ones",
        words=REDUCES,
    )
    signs: tuple[str, ...] = parameter(("absolute",), "ranked by |score|, or by the signed score", words=SIGNS)
    keep_first: tuple[bool, ...] = parameter((False,), "whether position 0 is exempt")
    layers: tuple[str, ...] = parameter(
        (ALL,), "layers masked together: all that are stored, each alone, or sets such as 10-19 or 3+7"
    )
    draws: int = parameter(16, "random rankings of the control", least=1, most=1000)

    def __post_init__(self) -> None:
        super().__post_init__()
        tell_apart(self.rates, "rates", f"{self.stage}.rates")
        for layers in self.layers:
            layer_set(layers, f"{self.stage}.layers")
        if not any(True for _ in self.rankings()):
            scores, scopes = ", ".join(self.scores), ", ".join(self.scopes)
            raise UsageError(
                f"{', '.join(LAYER_SCORES)} with the scope layer_token",
                got=f"{scores} with {scopes}",
                where=f"{self.stage}.scopes",
                remedy=f"Add layer_token to {self.stage}.scopes, or other scores to {self.stage}.scores.",
            )

    def require_layers(self, shape: StoreShape, _lengths: Sequence[int]) -> None:
        """UsageError for a layer with attention that the store does not keep."""
        for layers in self.layers:
            expanded(layer_set(layers, "layers"), shape.kept_layers, "masking.layers")

    def rankings(self) -> Iterator[Ranking]:
        """Every ranking of the grid, in order."""
        for scope, score in product(self.scopes, self.scores):
            if score in LAYER_SCORES and scope != "layer_token":
                continue
            reduces = self.reduce if scope in TOKEN_SCOPES else (NO_REDUCE,)
            draws = range(self.draws) if score == RANDOM else range(1)
            for reduce, sign, keep_first, draw in product(reduces, self.signs, self.keep_first, draws):
                yield Ranking(scope, score, reduce, sign, keep_first, draw)

    def cells(self) -> Iterator[Cell]:
        """Every cell, those of one ranking and one set of layers together."""
        sets = [layer_set(layers, "layers") for layers in self.layers]
        for layers, ranking in product(sets, self.rankings()):
            for direction, rate in product(self.directions, self.rates):
                yield Cell(ranking, direction, layers, rate)

    def reads(self, score: str) -> bool:
        """Whether some ranking is by that score."""
        return any(ranking.score == score for ranking in self.rankings())


def layer_set(text: str, where: str) -> tuple[int, ...] | str:
    """`all`, `each`, or numbers with ranges joined by +: 10-19, 3+7. Raises UsageError."""
    if text in (ALL, EACH):
        return text
    return tuple(sorted(number_set(text.replace("+", ","), where)))


def expanded(layers: tuple[int, ...] | str, kept: Sequence[int], where: str) -> list[tuple[int, ...]]:
    """The sets of layers that are masked at once, of those that the store keeps. UsageError for a layer it has not."""
    if layers == ALL:
        return [tuple(kept)]
    if layers == EACH:
        return [(layer,) for layer in kept]
    assert not isinstance(layers, str)
    if missing := [layer for layer in layers if layer not in kept]:
        there = f"layers with attention that the store keeps ({', '.join(map(str, kept))})"
        raise UsageError(there, got=str(missing[0]), where=where)
    return [layers]
