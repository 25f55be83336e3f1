"""The stages over ensembles of attention fields: their parameters, and what they read (methods.md §4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from storage.errors import UsageError
from storage.numbers import tell_apart
from storage.tables import TableSpec
from tasks.stages.contract import Stage
from tasks.stages.multiscale.ensemble_shape import LEAST_SNAPSHOTS, require_fields
from tasks.stages.multiscale.tables import (
    COHERENCY,
    LAG_MASS,
    POD_MODES,
    POD_SPECTRUM,
    POD_SUMMARY,
    PROTOCOLS,
    SCALOGRAM,
)
from tasks.stages.parameters import Parameters, parameter

_OMEGA0 = "the wavelet's frequency at scale 1, in radians; below 5 the wavelet's mean is not 0"


def _omega0() -> Any:
    return parameter(5.0, _OMEGA0, least=5, most=12)


def _scales(help: str) -> Any:
    """Scales in lags; finer wavelets than 1 lag fall between two of them."""
    return parameter((), help, above=0, empty=True)


def _check_scales(scales: tuple[float, ...], stage: str) -> None:
    if fine := [scale for scale in scales if not 1 <= scale < float("inf")]:
        raise UsageError("scales of at least 1 lag", got=", ".join(map(str, fine)), where=f"{stage}.scales")
    if list(scales) != sorted(scales):
        raise UsageError("scales in ascending order, each once", got=str(scales), where=f"{stage}.scales")
    tell_apart(scales, "scales", f"{stage}.scales")


@dataclass(frozen=True)
class ScalogramParameters(Parameters):
    """Parameters of the stage `scalogram`."""

    stage: ClassVar[str] = "scalogram"
    omega0: float = _omega0()
    scales: tuple[float, ...] = _scales("scales in lags, ascending; none: 20 from 2 to min(64, T/4)")
    protocols: tuple[str, ...] = parameter(
        PROTOCOLS, "exact (along the causal lag), published (the printed protocol, which looks ahead)", words=PROTOCOLS
    )
    per_head: bool = parameter(False, "whether every head has a scalogram too, beside the mean of all heads")

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_scales(self.scales, self.stage)


@dataclass(frozen=True)
class PodParameters(Parameters):
    """Parameters of the stage `pod`."""

    stage: ClassVar[str] = "pod"
    protocols: tuple[str, ...] = parameter(
        PROTOCOLS, "exact, published (the printed filters and conventions)", words=PROTOCOLS
    )
    scales: tuple[float, ...] = _scales(
        "scales a* of the filters, ascending; none: the dominant ones of each layer's scalogram"
    )
    draws: int = parameter(5, "draws of each null", least=0, most=1000)
    per_head: bool = parameter(False, "whether every head has a spectrum too, of its unfiltered field")
    epsilons: tuple[float, ...] = parameter(
        (0.10, 0.05, 0.01), "shares of the energy that the modes of an effective rank may leave", above=0, below=1
    )
    n_snapshots: tuple[int, ...] = parameter(
        (),
        "sizes of subsampled ensembles; none: N/8, N/4, N/2, and 150 where N is more; N itself is always there",
        least=LEAST_SNAPSHOTS,
        empty=True,
        repeats=True,
    )
    modes: int = parameter(4, "modes kept of each spectrum, with their coefficients", least=0, most=1000)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_scales(self.scales, self.stage)
        tell_apart(self.epsilons, "shares", "pod.epsilons")
        object.__setattr__(self, "n_snapshots", tuple(sorted(set(self.n_snapshots))))


@dataclass(frozen=True)
class CoherencyParameters(Parameters):
    """Parameters of the stage `coherency`."""

    stage: ClassVar[str] = "coherency"
    scales: tuple[float, ...] = _scales("scales in lags, ascending; none: the dominant ones of each layer's scalogram")
    queries: int = parameter(
        12,
        "queries of each scale, evenly spaced; every pair of them has a row",
        least=2,
        most=1000,
    )
    omega0: float = _omega0()
    draws: int = parameter(5, "draws of the null, whose mean is kept", least=1, most=1000)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_scales(self.scales, self.stage)


def _stage(name: str, parameters: type, query: str, *tables: TableSpec) -> Stage:
    """What the three have in common: they read attention, all documents of a layer at once, each layer in one shard."""
    return Stage(
        name=name,
        version=1,
        parameters=parameters,
        reads=frozenset({"attention"}),
        tables=tables,
        module=f"tasks.stages.multiscale.{name}",
        require_store=require_fields,
        on_request=True,
        surveys=True,
        query=query,
        summary=f"tasks.stages.multiscale.summary:{name}_lines",
    )


STAGES = (
    _stage("scalogram", ScalogramParameters, "scale_by_layer", SCALOGRAM, LAG_MASS),
    _stage("pod", PodParameters, "effective_rank", POD_SPECTRUM, POD_SUMMARY, POD_MODES),
    _stage("coherency", CoherencyParameters, "", COHERENCY),
)
