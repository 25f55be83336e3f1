"""What a training run is: every value that can change a bit of the model, checked before anything runs."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any

from storage.errors import UsageError

TRAINING_VERSION = 1
"""Raised whenever the same settings would give another model."""

SAMPLE, BASE, EGA = "sample", "base", "ega"
VARIANTS = (SAMPLE, BASE, EGA)
STATISTICS = ("causal", "published")
_OF_SAMPLE = ("muon_rate", "adam_rate", "warm_up")
PRECISIONS = ("float32", "bfloat16")
ADAMW, MUON = "adamw", "muon"
OPTIMISERS = (ADAMW, MUON)
HIGHEST_RATE = 1.0
"""Of any learning rate: an optimiser's step is about as large as its rate, so one above it is a mistake."""
HIGHEST_SEED = 2**63 - 1
"""What torch takes."""
_OF_REFERENCE = ("optimiser", "learning_rate", "weight_decay", "warm_up_steps", "dropout", "precision")
_OF_EGA = ("gate_statistics",)


@dataclass(frozen=True)
class TrainSettings:
    """A model over single characters and the way it is trained. The defaults made the sample model.

    `TrainSettings.of(variant)` has a variant's own defaults; a field that its variant does not use is ignored, and no
    part of what the run is.
    """

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
    """Peak learning rate of the hidden matrices where Muon trains them."""
    adam_rate: float = 2e-3
    """Peak learning rate of everything else (AdamW), of the sample."""
    warm_up: float = 0.05
    """Share of the steps in which both rates rise from 0."""
    held_out: float = 0.1
    """Share of the text, at its end, that is never trained on."""
    variant: str = SAMPLE
    """sample: GPT-NeoX, trained with Muon | base: GPT-2, with AdamW | ega: the same with energy gates."""
    optimiser: str = ADAMW
    """Of the reference models: adamw, or muon for the hidden matrices and adamw for the rest, as for the sample."""
    learning_rate: float = 3e-4
    """Peak learning rate of the reference models' AdamW."""
    weight_decay: float = 0.1
    """Of the reference models' matrices and embeddings."""
    warm_up_steps: int = 300
    """Steps in which the reference models' rate rises from 0; `of` takes at most a tenth of the steps by default."""
    dropout: float = 0.1
    """Of the reference models: embeddings, attention weights, and what attention and MLP give."""
    precision: str = "float32"
    """What the reference models multiply matrices in while they train: float32 | bfloat16 (autocast)."""
    gate_statistics: str = "causal"
    """Over which positions ega normalises energies: causal (up to the query) | published (all: they see the future)."""

    @classmethod
    def of(cls, variant: str, **given: Any) -> TrainSettings:
        """A variant's defaults with what is given and not None. UsageError for what the variant does not use."""
        if variant not in VARIANTS:
            remedy = f"The variants are {', '.join(VARIANTS)}."
            raise UsageError("a variant to train", got=f"'{variant}'", where="training settings", remedy=remedy)
        chosen = {name: value for name, value in given.items() if value is not None}
        defaults = {} if variant == SAMPLE else {"steps": 5000, "batch": 64, "seed": 42, "width": 256}
        if variant != SAMPLE:
            steps = chosen.get("steps", defaults["steps"])
            defaults["warm_up_steps"] = min(cls.warm_up_steps, steps // 10)
        settings = cls(**{**defaults, **chosen, "variant": variant})
        for name in sorted(chosen.keys() - settings.describe().keys()):
            raise UsageError(f"an option of the variant '{variant}'", got=name, where="training settings")
        return settings

    def check(self, checkpoint_every: int = 1) -> TrainSettings:
        """Itself, or UsageError naming the first value that cannot be.

        checkpoint_every is none of the settings, since it changes no bit of the model, but is refused with them.
        """
        if checkpoint_every < 1:
            raise UsageError("a checkpoint every 1 or more steps", got=str(checkpoint_every), where="training settings")
        for name in ("steps", "batch", "layers", "heads"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} of at least 1", got=str(getattr(self, name)), where="training settings")
        if self.context < 2:
            raise UsageError("a context of at least 2 characters", got=str(self.context), where="training settings")
        self._check_width()
        for name in ("muon_rate", "adam_rate", "learning_rate"):
            if not 0 < getattr(self, name) <= HIGHEST_RATE:
                expected = f"{name} above 0 and at most {HIGHEST_RATE:g}"
                raise UsageError(expected, got=str(getattr(self, name)), where="training settings")
        if not 0 <= self.seed <= HIGHEST_SEED:
            raise UsageError(f"a seed of 0 to {HIGHEST_SEED}", got=str(self.seed), where="training settings")
        for name in ("warm_up", "held_out", "dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise UsageError(f"{name} in [0, 1)", got=str(getattr(self, name)), where="training settings")
        if self.held_out == 0:
            raise UsageError("a held-out share above 0", got="0", where="training settings")
        if self.variant != SAMPLE:
            self._check_reference()
        return self

    @property
    def uses_muon(self) -> bool:
        """Whether Muon trains the hidden matrices."""
        return self.variant == SAMPLE or self.optimiser == MUON

    def _check_width(self) -> None:
        of_head, expected = 1, "a width that the heads share evenly"
        if self.variant == SAMPLE:
            of_head, expected = (
                8,
                "a width that gives every head a multiple of 8 (a quarter of it is rotated, in pairs)",
            )
        if self.width < 1 or self.width % (of_head * self.heads):
            raise UsageError(
                expected,
                got=f"width {self.width} over {self.heads} heads",
                where="training settings",
                remedy=f"Use a width that is a multiple of {of_head * self.heads}.",
            )

    def _check_reference(self) -> None:
        if not 0 <= self.warm_up_steps < self.steps:
            raise UsageError(
                f"a warm-up of 0 to {self.steps - 1} steps, fewer than all of them",
                got=str(self.warm_up_steps),
                where="training settings",
                remedy="Give --warm-up-steps.",
            )
        if not 0 <= self.weight_decay < math.inf:
            raise UsageError(
                "a finite weight decay of at least 0", got=str(self.weight_decay), where="training settings"
            )
        words = {"optimiser": OPTIMISERS, "precision": PRECISIONS, "gate_statistics": STATISTICS}
        for name, known in words.items():
            value = getattr(self, name)
            if value not in known:
                expected = f"{name.replace('_', ' ')} {' or '.join(known)}"
                raise UsageError(expected, got=f"'{value}'", where="training settings")

    def describe(self) -> dict[str, Any]:
        """Plain values, with the version of the training code: of the fields, those that the variant uses."""
        of_sample = [name for name in _OF_SAMPLE if name != "muon_rate" or self.optimiser != MUON]
        unused = {
            SAMPLE: ("variant", *_OF_REFERENCE, *_OF_EGA),  # what made the sample was said without them
            BASE: (*of_sample, *_OF_EGA),
            EGA: of_sample,
        }[self.variant]
        values = asdict(self)
        used = {field.name: values[field.name] for field in fields(self) if field.name not in unused}
        return {"training_version": TRAINING_VERSION, **used}
