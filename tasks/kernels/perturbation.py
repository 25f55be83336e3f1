"""Moving vectors by δ in length alone (magnitude) or in direction alone (angle), in two protocols (methods.md §3).

`exact` moves every token by δ: ‖h′ − h‖ = δ in both arms, and tokens with ‖h‖ ≤ δ stay as they are in both. `published`
is what the authors' notebook does: no token is spared, and one scalar a sequence makes the *mean* angular displacement
δ, so that a token of huge norm takes nearly all of it. Everything is float64; who casts, casts last.

Reference: Vardhan & Teja 2026, arXiv 2602.11169.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

PROTOCOLS: tuple[str, ...] = ("exact", "published")
ARMS: tuple[str, ...] = ("magnitude", "angle")
STEPS, LARGEST = 20, 2.0
"""Of the bisection of `published`: its steps, and the end of the interval from 0 that it halves."""
_TINY = 1e-12
"""Norms below it divide as it, as in the notebook's `normalize`: a vector of zeros has no direction."""


def random_signs(n_tokens: int, seed: int) -> Float64[Tensor, " T"]:
    """+1 or −1 a token, each as likely; of a longer sequence with the same seed these are the first."""
    drawn = np.random.default_rng(seed).random(n_tokens)
    return torch.from_numpy(np.where(drawn < 0.5, -1.0, 1.0))


def random_vectors(n_tokens: int, width: int, seed: int) -> Float64[Tensor, "T D"]:
    """Gaussian vectors, one a token; of a longer sequence with the same seed and width these are the first."""
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((n_tokens, width)))


def noise(arm: str, n_tokens: int, width: int, seed: int) -> Float64[Tensor, "T ..."]:
    """What an arm draws: signs (T,) of the magnitude arm, Gaussian vectors (T, D) of the angle arm."""
    _known(arm, ARMS, "arm")
    return random_signs(n_tokens, seed) if arm == "magnitude" else random_vectors(n_tokens, width, seed)


def displaced(
    hidden: Float[Tensor, "T D"],
    delta: float,
    drawn: Float64[Tensor, "T ..."],
    *,
    protocol: str = "exact",
    arm: str = "magnitude",
    first_token: bool = True,
) -> Float64[Tensor, "T D"]:
    """Every token moved by δ in length or direction, in one protocol.

    delta: δ > 0, in the unit of ‖h‖. drawn: what `noise` gives for the arm. first_token: whether position 0 is moved
    too; where it is not, the mean of `published` is over the others, and their noise is the same. Raises ValueError for
    another protocol or arm, a δ that is not positive and finite, noise of another shape, or an angle in one dimension.
    """
    _known(protocol, PROTOCOLS, "protocol")
    _known(arm, ARMS, "arm")
    if not (0 < delta < float("inf")):
        raise ValueError(f"expected a δ above 0, got {delta}")
    shape = tuple(hidden.shape) if arm == "angle" else tuple(hidden.shape[:1])
    if tuple(drawn.shape) != shape:
        raise ValueError(f"expected noise of shape {shape} for the {arm} arm, got {tuple(drawn.shape)}")
    if arm == "angle" and hidden.shape[1] < 2:
        raise ValueError("expected vectors of at least 2 dimensions, in which there are directions, got 1")
    rules = {
        ("exact", "magnitude"): exact_magnitude,
        ("exact", "angle"): exact_angle,
        ("published", "magnitude"): published_magnitude,
        ("published", "angle"): published_angle,
    }
    first, moved = 0 if first_token else 1, hidden.double()
    if len(moved) == first:
        return moved
    changed = rules[protocol, arm](moved[first:], delta, drawn[first:].to(moved.device))
    return torch.cat([moved[:first], changed])


def movable(hidden: Float[Tensor, "T D"], delta: float, *, protocol: str = "exact") -> Bool[Tensor, " T"]:
    """The tokens that a protocol moves, both arms alike: longer than δ in `exact`, of any norm in `published`."""
    return hidden.double().norm(dim=-1) > (delta if protocol == "exact" else 0.0)


def exact_magnitude(
    hidden: Float64[Tensor, "T D"], delta: float, signs: Float64[Tensor, " T"]
) -> Float64[Tensor, "T D"]:
    """h′ = (1 ± δ/‖h‖) h where ‖h‖ > δ."""
    norm = hidden.norm(dim=-1, keepdim=True)
    changed = hidden * (1 + signs[:, None] * delta / norm.clamp_min(_TINY))
    return torch.where(norm > delta, changed, hidden)


def exact_angle(
    hidden: Float64[Tensor, "T D"], delta: float, vectors: Float64[Tensor, "T D"]
) -> Float64[Tensor, "T D"]:
    """h′ = ‖h‖ (cos θ ĥ + sin θ v̂) where ‖h‖ > δ, θ = 2 asin(δ/2‖h‖); v̂ is the vector's part orthogonal to h, unit.

    The half-angle form keeps its precision where δ ≪ ‖h‖, where arccos(1 − δ²/2‖h‖²) loses all of it.
    """
    norm = hidden.norm(dim=-1, keepdim=True)
    unit = hidden / norm.clamp_min(_TINY)
    across = vectors - (vectors * unit).sum(-1, keepdim=True) * unit
    across = across / across.norm(dim=-1, keepdim=True).clamp_min(_TINY)
    half = torch.asin((delta / (2 * norm.clamp_min(_TINY))).clamp(max=1))
    changed = norm * (torch.cos(2 * half) * unit + torch.sin(2 * half) * across)
    return torch.where(norm > delta, changed, hidden)


def published_magnitude(
    hidden: Float64[Tensor, "T D"], delta: float, signs: Float64[Tensor, " T"]
) -> Float64[Tensor, "T D"]:
    """h′ = (1 ± δ/‖h‖) h for every token: one shorter than δ is turned round by a minus sign. A zero vector stays."""
    norm = hidden.norm(dim=-1, keepdim=True)
    return torch.where(norm > 0, hidden * (1 + signs[:, None] * delta / norm.clamp_min(_TINY)), hidden)


def published_angle(
    hidden: Float64[Tensor, "T D"], delta: float, vectors: Float64[Tensor, "T D"]
) -> Float64[Tensor, "T D"]:
    """h′ = ‖h‖ normalise(ĥ + m ẑ), ẑ the vector made unit, not orthogonalised; m from `mean_matched`."""
    norm = hidden.norm(dim=-1)
    unit = torch.nn.functional.normalize(hidden, dim=-1, eps=_TINY)
    z = torch.nn.functional.normalize(vectors, dim=-1, eps=_TINY)
    m = mean_matched(norm, (unit * z).sum(-1), delta)
    return torch.nn.functional.normalize(unit + m * z, dim=-1, eps=_TINY) * norm[:, None]


def mean_matched(norms: Float64[Tensor, " T"], cosines: Float64[Tensor, " T"], delta: float) -> float:
    """The m of a sequence for which the mean over tokens of ‖h′ − h‖ is δ: 20 halvings of [0, 2], and then the middle.

    2 where even that moves the mean by less. cosines: of each h with its ẑ. The displacement of a token is
    ‖h‖ √(2 − 2 cos φ), cos φ = (1 + m c)/√(1 + 2 m c + m²), and rises with m. Raises ValueError for no token.
    """
    if not len(norms):
        raise ValueError("expected at least one token to match a mean over, got none")

    def mean(m: float) -> float:
        squared = (1 + 2 * m * cosines + m * m).clamp_min(_TINY**2)
        chord = (2 - 2 * (1 + m * cosines) / squared.sqrt()).clamp_min(0).sqrt()
        return float((norms * chord).mean())

    low, high = 0.0, LARGEST
    if mean(high) < delta:
        return high
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if mean(middle) < delta else (low, middle)
    return (low + high) / 2


def _known(word: str, words: tuple[str, ...], what: str) -> None:
    if word not in words:
        raise ValueError(f"expected {what} {' or '.join(words)}, got {word!r}")
