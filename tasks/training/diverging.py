"""Training that diverged: told at the step at which it shows, before what is lost stands in place of what is good."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from storage.errors import TrainingDiverged

if TYPE_CHECKING:
    import torch


def require_finite(loss: float, where: str) -> float:
    """The loss itself; TrainingDiverged, naming the place, where it is NaN or infinite."""
    if not math.isfinite(loss):
        raise _diverged("a finite loss", f"{loss} nats per character", where)
    return loss


def require_finite_weights(weights: Mapping[str, torch.Tensor], where: str) -> None:
    """TrainingDiverged, naming the place and the first of the weights that are not finite."""
    for name, tensor in weights.items():
        if not tensor.isfinite().all():
            raise _diverged("finite weights", f"NaN or infinity in {name}", where)


def _diverged(expected: str, got: str, where: str) -> TrainingDiverged:
    return TrainingDiverged(
        expected,
        got=got,
        where=f"training, {where}",
        remedy="Train with a smaller learning rate, into another folder. The last good checkpoint stays; no model was "
        "written.",
    )
