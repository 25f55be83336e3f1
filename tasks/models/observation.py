"""What a replay observes while it runs, row by row: how far tokens are moved and come to lie, how even α is.

Nothing of a pass is kept but these: no residual stream, and of attention one block of queries at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from tasks.kernels.perturbation import movable
from tasks.models.interventions import Displace


@dataclass(frozen=True)
class Observables:
    """What to observe."""

    displaced: bool = False
    """Norms and displacements of the tokens that `Displace` was to move."""
    entropy: bool = False
    """How even the attention of each layer is."""
    clean: Callable[[int, int], Tensor] | None = None
    """clean(document, layer): the residual stream (T, D) that leaves the layer in the clean run, to tell distances."""


@dataclass
class Displacement:
    """What one `Displace` did to a row's tokens, position 0 first, as measured on what leaves the layer; float64."""

    delta: float
    norm: np.ndarray
    """‖h‖, (T,)."""
    displacement: np.ndarray
    """‖h′ − h‖, (T,): 0 where the token stayed."""
    moved: np.ndarray
    """(T,) bool: the tokens that the protocol moves."""
    first: int
    """The first position that was to be moved: 0 or 1."""


@dataclass
class Observed:
    """What was observed of one row."""

    displacements: dict[int, Displacement] = field(default_factory=dict)
    """By layer."""
    entropy: dict[int, float] = field(default_factory=dict)
    """Layer → mean over heads and queries of −Σ_j α log α, in nats; of layers whose attention the tap reaches."""
    distances: dict[int, np.ndarray] = field(default_factory=dict)
    """Layer → ‖h′ − h‖ of what leaves it and left it in the clean run, float64 (T,)."""


class Observer:
    """Observes one batch while it runs."""

    def __init__(self, observables: Observables, documents: Sequence[int], lengths: Sequence[int]) -> None:
        self.observables, self._documents, self._lengths = observables, documents, lengths
        self.seen = [Observed() for _ in documents]

    def displaced(self, b: int, displace: Displace, before: Tensor, after: Tensor) -> None:
        """(T, D) of a row before and after, in the dtype in which it goes on."""
        if not self.observables.displaced:
            return
        first, wide = 0 if displace.first_token else 1, before.double()
        moved = movable(wide, displace.delta, protocol=displace.protocol)
        moved[:first] = False
        self.seen[b].displacements[displace.layer] = Displacement(
            displace.delta,
            wide.norm(dim=-1).cpu().numpy(),
            (after.double() - wide).norm(dim=-1).cpu().numpy(),
            moved.cpu().numpy(),
            first,
        )

    def leaves(self, layer: int, hidden: Tensor) -> None:
        """(B, T, D) that leaves a layer, all changes made."""
        if self.observables.clean is None:
            return
        for b, (document, length) in enumerate(zip(self._documents, self._lengths, strict=True)):
            clean = self.observables.clean(document, layer).to(hidden.device)
            apart = (hidden[b, :length].double() - clean.double()).norm(dim=-1)
            self.seen[b].distances[layer] = apart.cpu().numpy()

    def attention(self, layer: int, start: int, weights: Tensor) -> None:
        """A block of weights (B, H, q, K) as they are used, from the query `start`; what is not seen weighs 0."""
        if not self.observables.entropy:
            return
        sums = _entropy(weights.float()).sum(1)  # (B, q)
        for b, length in enumerate(self._lengths):
            own = float(sums[b, : max(length - start, 0)].sum(dtype=torch.float64))
            so_far = self.seen[b].entropy.get(layer, 0.0)
            self.seen[b].entropy[layer] = so_far + own / (weights.shape[1] * length)


def _entropy(weights: Tensor) -> Tensor:
    """−Σ α log α over the last axis; a weight of 0 adds nothing, since its logarithm is bounded first."""
    logs = weights.clamp_min(torch.finfo(weights.dtype).tiny).log_()
    return -(logs.mul_(weights)).sum(-1)
