"""What a training run is: every value that can change a bit of the model, checked before anything runs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from storage.errors import UsageError

TRAINING_VERSION = 1
"""Raised whenever the same settings would give another model."""


@dataclass(frozen=True)
class TrainSettings:
    """A GPT-NeoX model over single characters and the way it is trained. The defaults made the sample model."""

    steps: int = 1450
    batch: int = 8
    """Windows in one step."""
    context: int = 256
    """Characters in a window: the model's positions."""
    seed: int = 1337
    layers: int = 6
    heads: int = 8
    width: int = 128
    muon_rate: float = 0.02
    """Peak learning rate of the hidden matrices (Muon)."""
    adam_rate: float = 2e-3
    """Peak learning rate of everything else (AdamW)."""
    warm_up: float = 0.05
    """Share of the steps in which both rates rise from 0."""
    held_out: float = 0.1
    """Share of the text, at its end, that is never trained on."""

    def check(self) -> TrainSettings:
        """Itself, or UsageError naming the first value that cannot be."""
        for name in ("steps", "batch", "layers", "heads"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} of at least 1", got=str(getattr(self, name)), where="training settings")
        if self.context < 2:
            raise UsageError("a context of at least 2 characters", got=str(self.context), where="training settings")
        if self.width < 1 or self.width % self.heads or (self.width // self.heads) % 8:
            raise UsageError(
                "a width that gives every head a multiple of 8 (a quarter of it is rotated, in pairs)",
                got=f"width {self.width} over {self.heads} heads",
                where="training settings",
                remedy=f"Use a width that is a multiple of {8 * self.heads}.",
            )
        for name in ("muon_rate", "adam_rate"):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name} above 0", got=str(getattr(self, name)), where="training settings")
        for name in ("warm_up", "held_out"):
            if not 0 <= getattr(self, name) < 1:
                raise UsageError(f"{name} in [0, 1)", got=str(getattr(self, name)), where="training settings")
        if self.held_out == 0:
            raise UsageError("a held-out share above 0", got="0", where="training settings")
        return self

    def describe(self) -> dict[str, Any]:
        """Plain values, with the version of the training code."""
        return {"training_version": TRAINING_VERSION, **asdict(self)}
