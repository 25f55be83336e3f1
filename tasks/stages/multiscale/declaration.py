"""The declarations of the stages over ensembles of attention fields: what they read, their parameters, their tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from storage.errors import UsageError
from storage.numbers import tell_apart
from tasks.stages.multiscale.tables import COHERENCY, LAG_MASS, POD_MODES, POD_SPECTRUM, POD_SUMMARY, SCALOGRAM
from tasks.stages.registry import Stage

if TYPE_CHECKING:
    from storage.store_shape import StoreShape

PROTOCOLS = ("exact", "published")
LEAST_TOKENS = 16
"""Windows shorter than this have no scales to tell apart."""
LEAST_SNAPSHOTS = 3
_LEAST_SCALE = 1.0
"""In lags: finer wavelets fall between two of them."""


def _require(ok: bool, expected: str, got: object, where: str) -> None:
    if not ok:
        raise UsageError(expected, got=str(got), where=where)


def _check(stage: str, omega0: float, scales: tuple[float, ...], protocols: tuple[str, ...] = PROTOCOLS) -> None:
    """What the three stages' parameters have in common."""
    _require(
        5 <= omega0 <= 12, "a frequency from 5 to 12 (below 5 the wavelet's mean is not 0)", omega0, f"{stage}.omega0"
    )
    fine = [a for a in scales if not _LEAST_SCALE <= a < float("inf")]
    _require(not fine, f"scales of at least {_LEAST_SCALE:g} lag", ", ".join(map(str, fine)), f"{stage}.scales")
    _require(list(scales) == sorted(set(scales)), "scales in ascending order, each once", scales, f"{stage}.scales")
    tell_apart(scales, "scales", f"{stage}.scales")
    unknown = [p for p in protocols if p not in PROTOCOLS]
    _require(not unknown, f"some of {', '.join(PROTOCOLS)}", ", ".join(unknown), f"{stage}.protocols")
    once = bool(protocols) and len(set(protocols)) == len(protocols)
    _require(once, f"some of {', '.join(PROTOCOLS)}, each once", protocols or "none", f"{stage}.protocols")


@dataclass(frozen=True)
class ScalogramParameters:
    """Parameters of the stage `scalogram` (methods.md §4)."""

    omega0: float = 5.0
    """The wavelet's frequency at scale 1, in radians."""
    scales: tuple[float, ...] = ()
    """In lags, ascending; none: 20 from 2 to min(64, T/4)."""
    protocols: tuple[str, ...] = PROTOCOLS
    """exact (along the causal lag), published (the printed protocol, which looks ahead)."""
    per_head: bool = False
    """Whether every head has a scalogram too, beside the mean of all."""

    def __post_init__(self) -> None:
        _check("scalogram", self.omega0, self.scales, self.protocols)


@dataclass(frozen=True)
class PodParameters:
    """Parameters of the stage `pod` (methods.md §4)."""

    protocols: tuple[str, ...] = PROTOCOLS
    """exact, published (the printed filters and conventions)."""
    scales: tuple[float, ...] = ()
    """Scales a* of the filters, in lags; none: the dominant ones of each layer's scalogram."""
    draws: int = 5
    """Of each null."""
    per_head: bool = False
    """Whether every head has a spectrum too, of its unfiltered field."""
    epsilons: tuple[float, ...] = (0.10, 0.05, 0.01)
    """Shares of the energy that the modes of an effective rank may leave."""
    n_snapshots: tuple[int, ...] = ()
    """Sizes of subsampled ensembles; none: N/8, N/4, N/2, and 150 where N is more. N itself is always there."""
    modes: int = 4
    """Modes kept of each spectrum, with their coefficients."""

    def __post_init__(self) -> None:
        _check("pod", 5.0, self.scales, self.protocols)
        _require(0 <= self.draws <= 1000, "from 0 to 1,000 draws", self.draws, "pod.draws")
        _require(0 <= self.modes <= 1000, "from 0 to 1,000 modes", self.modes, "pod.modes")
        outside = [e for e in self.epsilons if not 0 < e < 1]
        _require(not outside, "shares between 0 and 1", ", ".join(map(str, outside)), "pod.epsilons")
        once = bool(self.epsilons) and len(set(self.epsilons)) == len(self.epsilons)
        _require(once, "shares, each once", self.epsilons or "none", "pod.epsilons")
        tell_apart(self.epsilons, "shares", "pod.epsilons")
        few = [n for n in self.n_snapshots if n < LEAST_SNAPSHOTS]
        _require(not few, f"ensembles of at least {LEAST_SNAPSHOTS}", ", ".join(map(str, few)), "pod.n_snapshots")
        object.__setattr__(self, "n_snapshots", tuple(sorted(set(self.n_snapshots))))


@dataclass(frozen=True)
class CoherencyParameters:
    """Parameters of the stage `coherency` (methods.md §4)."""

    scales: tuple[float, ...] = ()
    """In lags; none: the dominant ones of each layer's scalogram."""
    queries: int = 12
    """Queries of each scale, evenly spaced over those that can be asked; every pair of them has a row."""
    omega0: float = 5.0
    """The wavelet's frequency at scale 1, in radians."""
    draws: int = 5
    """Of the null, whose mean is told."""

    def __post_init__(self) -> None:
        _check("coherency", self.omega0, self.scales)
        _require(2 <= self.queries <= 1000, "from 2 to 1,000 queries", self.queries, "coherency.queries")
        _require(1 <= self.draws <= 1000, "from 1 to 1,000 draws", self.draws, "coherency.draws")


def suits(parameters: Any, shape: StoreShape, lengths: Sequence[int]) -> None:
    """UsageError unless the capture is an ensemble, and scales and subsamples lie inside it."""
    n_tokens, whole = suits_an_ensemble(shape, lengths)
    largest = (n_tokens - 1) // 2 / 2**0.5
    beyond = [scale for scale in parameters.scales if scale > largest]
    if beyond:
        raise UsageError(
            f"scales of at most {largest:.4g}, inside the cone of influence of {n_tokens} tokens",
            got=", ".join(f"{scale:g}" for scale in beyond),
            remedy="Ask for smaller scales, or capture with a larger --window.",
        )
    most = max(getattr(parameters, "n_snapshots", ()), default=0)
    if most > whole:
        raise UsageError(f"ensembles of at most the {whole} documents of {n_tokens} tokens", got=str(most))


def suits_an_ensemble(shape: StoreShape, lengths: Sequence[int]) -> tuple[int, int]:
    """T, and how many documents have it. UsageError unless attention is causal, and most windows are of one length."""
    if not shape.causal:
        raise UsageError(
            "a model whose queries see no later key: the method goes along the causal lag", got="an encoder's store"
        )
    n_tokens = max(lengths, default=0)
    whole = sum(length == n_tokens for length in lengths)
    if whole < LEAST_SNAPSHOTS or 2 * whole < len(lengths):
        raise UsageError(
            f"at least {LEAST_SNAPSHOTS} windows, and most of all, of one length",
            got=f"{whole} of {n_tokens} tokens among {len(lengths)} of {min(lengths, default=0)} to {n_tokens}",
            remedy="Capture more text, or with a --window that nearly every document fills.",
        )
    if n_tokens < LEAST_TOKENS:
        raise UsageError(
            f"windows of at least {LEAST_TOKENS} tokens", got=str(n_tokens), remedy="Capture with a larger --window."
        )
    return n_tokens, whole


def _stage(name: str, parameters: type, *tables: Any) -> Stage:
    """What the three have in common: they read attention, all documents of a layer at once, each layer in one shard."""
    return Stage(
        name=name,
        version=1,
        parameters=parameters,
        reads=frozenset({"attention"}),
        tables=tables,
        needs_model=False,
        module=f"tasks.stages.{name}",
        suits=suits,
        on_request=True,
        surveys=True,
    )


SCALOGRAM_STAGE = _stage("scalogram", ScalogramParameters, SCALOGRAM, LAG_MASS)
POD_STAGE = _stage("pod", PodParameters, POD_SPECTRUM, POD_SUMMARY, POD_MODES)
COHERENCY_STAGE = _stage("coherency", CoherencyParameters, COHERENCY)
