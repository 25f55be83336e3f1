"""The grid of perturbation: which conditions there are, in the words of the tables (methods.md §3)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from storage.errors import UsageError
from storage.keys import seed_for
from storage.numbers import number_set, spans, tell_apart, written
from storage.tables import INT, LAYER_SET, REAL, Declared, one_of
from tasks.models.interventions import ARMS, PROTOCOLS, Displace
from tasks.stages.parameters import Parameters, parameter

if TYPE_CHECKING:
    from storage.store_shape import StoreShape

ABSOLUTE, RELATIVE = "absolute", "relative"
INCLUDE, EXCLUDE = "include", "exclude"
MIDDLE, ALL, EACH = "middle", "all", "each"
_LONG_NAME = 64
_MOST_DELTA = 1e15
"""Squares of what is moved by more would leave float32."""

KEYS: dict[str, Declared] = {
    **{"protocol": one_of(*PROTOCOLS), "arm": one_of(*ARMS), "delta": REAL, "delta_kind": one_of(ABSOLUTE, RELATIVE)},
    **{"layers": LAYER_SET, "first_token": one_of(INCLUDE, EXCLUDE), "seed": INT},
}
"""The columns that name a condition, in every table of the stages that perturb."""


def deltas_parameter(default: tuple[float, ...]) -> Any:
    """Absolute δ, whose default differs from stage to stage; as the next two."""
    return parameter(default, "absolute δ, in the unit of ‖h‖", above=0, most=_MOST_DELTA, empty=True, repeats=True)


def first_token_parameter(default: tuple[str, ...]) -> Any:
    return parameter(default, "whether position 0 is perturbed too", words=(INCLUDE, EXCLUDE))


def seeds_parameter(default: int) -> Any:
    return parameter(default, "draws of the noise", least=1, most=1_000)


@dataclass(frozen=True)
class Cell:
    """One condition."""

    protocol: str
    arm: str
    delta: float
    """In the unit of ‖h‖, or relative to its median in each layer."""
    delta_kind: str
    layers: tuple[int, ...]
    """Perturbed together, in order."""
    first_token: str
    seed: int

    def columns(self, n_layers: int) -> dict[str, Any]:
        """The values of KEYS, of a model of so many layers."""
        return {**{name: getattr(self, name) for name in KEYS}, "layers": label(self.layers, n_layers)}

    def condition(self, medians: Mapping[int, float], seed: int) -> tuple[Displace, ...]:
        """What the cell does; medians: layer → median ‖h‖ of what leaves it, where δ is relative; seed: the run's."""
        of_relative = self.delta_kind == RELATIVE
        return tuple(
            Displace(
                layer,
                self.delta * medians[layer] if of_relative else self.delta,
                self.arm,
                self.protocol,
                self.first_token == INCLUDE,
                noise_seed(seed, self.seed),
            )
            for layer in self.layers
        )


def noise_seed(seed: int, draw: int) -> int:
    """What the noise of a draw comes from, of all stages alike, so that they perturb alike; seed: the run's."""
    return seed_for(seed, "perturbation", draw)


@dataclass(frozen=True)
class PerturbationGrid(Parameters):
    """Which cells there are. methods.md's full grid: deltas 1, 2, 5, 10, 15, 20, relative 0.05, 0.1, 0.2, 0.4, 5 seeds.

    The defaults are a part of it that takes minutes with a model of 135 million parameters on two cores.
    """

    protocols: tuple[str, ...] = parameter(
        PROTOCOLS, "exact (every token moves by δ), published (as the authors' code)", words=PROTOCOLS
    )
    arms: tuple[str, ...] = parameter(ARMS, "what is changed: magnitude, or direction by an angle", words=ARMS)
    deltas: tuple[float, ...] = deltas_parameter((1.0, 5.0, 10.0))
    relative_deltas: tuple[float, ...] = parameter(
        (0.1,),
        "δ relative to the layer's median ‖h‖ over the tokens of the capture",
        above=0,
        most=_MOST_DELTA,
        empty=True,
        repeats=True,
    )
    layers: tuple[str, ...] = parameter(
        (MIDDLE,), "sets perturbed together: middle (third), all, 10-19 or 3+7; each: before one takes its layers alone"
    )
    first_token: tuple[str, ...] = first_token_parameter((INCLUDE, EXCLUDE))
    seeds: int = seeds_parameter(2)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("deltas", "relative_deltas"):
            tell_apart(getattr(self, name), "δ", f"{self.stage}.{name}")
        if not (*self.deltas, *self.relative_deltas):
            raise UsageError("deltas or relative_deltas, at least one", got="none", where=f"{self.stage}.deltas")
        for text in self.layers:
            _parsed(text, f"{self.stage}.layers")

    def layer_sets(self, n_layers: int) -> list[tuple[int, ...]]:
        """The sets that are perturbed together in a model of so many layers. UsageError for one beyond."""
        found: dict[tuple[int, ...], None] = {}
        for text in self.layers:
            each, named = _parsed(text, "layers")
            layers = _expanded(named, n_layers)
            found.update(dict.fromkeys(((layer,) for layer in layers) if each else (layers,)))
        return list(found)

    def cells(self, n_layers: int) -> Iterator[Cell]:
        """Every cell; those of one set of layers together, and of these those that share their noise."""
        deltas = [(d, ABSOLUTE) for d in self.deltas] + [(d, RELATIVE) for d in self.relative_deltas]
        for layers in self.layer_sets(n_layers):
            for seed, arm, protocol in product(range(self.seeds), self.arms, self.protocols):
                for first_token, (delta, kind) in product(self.first_token, deltas):
                    yield Cell(protocol, arm, delta, kind, layers, first_token, seed)

    def require_residual(self, shape: StoreShape, streams: Callable[[tuple[int, ...]], Iterable[int]]) -> None:
        """UsageError unless the store keeps the residual stream before the layers that `streams` gives of a set."""
        there = shape.layer_numbers("residual")
        for layers in self.layer_sets(shape.n_layers):
            if missing := [layer for layer in streams(layers) if layer not in there]:
                raise UsageError(
                    f"a store of the residual stream that layers {spans(layers)} need",
                    got=f"one without that before layers {spans(missing)}",
                    where="layers",
                    remedy="Name layers that the store keeps, or capture without --layers.",
                )


def label(layers: Sequence[int], n_layers: int) -> str:
    """Layers as the tables name them: `all` of the model, or numbers such as 10-19."""
    return ALL if len(layers) == n_layers else written(layers)


def set_name(layers: Sequence[int]) -> str:
    """A set of layers in the name of a file, another one for every set."""
    words = written(layers)
    return f"layers-{words if len(words) <= _LONG_NAME else hashlib.sha256(words.encode()).hexdigest()[:32]}"


def _parsed(text: str, where: str) -> tuple[bool, tuple[int, ...] | str]:
    """Whether layers are perturbed each alone, and which."""
    before, colon, named = text.rpartition(":")
    if colon and before != EACH:
        raise UsageError("layers such as middle, all, 10-19, 3+7, or each:10-19", got=repr(text), where=where)
    if not colon and named == EACH:
        return True, ALL
    if named in (MIDDLE, ALL):
        return bool(colon), named
    return bool(colon), number_set(named.replace("+", ","), where)


def _expanded(named: tuple[int, ...] | str, n_layers: int) -> tuple[int, ...]:
    if named == ALL:
        return tuple(range(n_layers))
    if named == MIDDLE:
        first = n_layers // 3
        return tuple(range(first, max(2 * n_layers // 3, first + 1)))
    assert not isinstance(named, str)
    if outside := [layer for layer in named if layer >= n_layers]:
        raise UsageError(f"layers from 0 to {n_layers - 1}", got=spans(outside), where="layers")
    return named
