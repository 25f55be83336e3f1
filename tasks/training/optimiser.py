"""What moves the parameters: Muon and AdamW, or AdamW alone.

Muon (Jordan 2024, https://kellerjordan.github.io/posts/muon/) steps along the orthogonalised momentum of a matrix. It
is meant for the matrices between hidden layers; embeddings, the output layer, norms and biases stay with AdamW. One
cosine holds for both.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from storage.errors import UsageError
from tasks.training.settings import SAMPLE, TrainSettings

if TYPE_CHECKING:
    import torch

MUON_DECAY = 0.1
ADAM_BETAS = (0.9, 0.95)
GRADIENT_NORM = 1.0
"""Gradients are scaled down to this norm."""


def rate_factor(step: int, settings: TrainSettings) -> float:
    """Learning rate of a step as a share of its peak: linear warm-up, then half a cosine that ends near 0.

    step: 0-based. Returns a value in (0, 1].
    """
    rise = _rise(settings)
    if step < rise:
        return (step + 1) / rise
    along = (step - rise + 1) / (settings.steps - rise + 1)
    return 0.5 * (1 + math.cos(math.pi * along))


def _rise(settings: TrainSettings) -> int:
    """Steps of the warm-up, 1 at least."""
    asked = round(settings.warm_up * settings.steps) if settings.variant == SAMPLE else settings.warm_up_steps
    return max(1, asked)


class Optimiser:
    """The optimisers of a variant as one."""

    def __init__(self, model: Any, settings: TrainSettings) -> None:
        self._settings = settings
        self._parameters = list(model.parameters())
        self._parts = _parts(model, settings)

    def step(self, step: int) -> None:
        """Move the parameters by the gradients that lie on them, then drop the gradients."""
        import torch

        torch.nn.utils.clip_grad_norm_(self._parameters, GRADIENT_NORM)
        factor = rate_factor(step, self._settings)
        for optimiser, peak in self._parts.values():
            for group in optimiser.param_groups:
                group["lr"] = peak * factor
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)

    def state(self) -> dict[str, torch.Tensor]:
        """Moments and counts as one flat dictionary of tensors."""
        import torch

        flat: dict[str, torch.Tensor] = {}
        for name, (optimiser, _) in self._parts.items():
            for number, values in optimiser.state_dict()["state"].items():
                flat.update({f"{name}.{number}.{key}": torch.as_tensor(value) for key, value in values.items()})
        return flat

    def load_state(self, flat: dict[str, torch.Tensor]) -> None:
        """Take up where `state()` was read."""
        for name, (optimiser, _) in self._parts.items():
            state: dict[int, dict[str, torch.Tensor]] = {}
            for key, value in flat.items():
                owner, number, entry = key.split(".")
                if owner == name:
                    state.setdefault(int(number), {})[entry] = value
            optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})


def _parts(model: Any, settings: TrainSettings) -> dict[str, tuple[torch.optim.Optimizer, float]]:
    """Name → optimiser and its peak rate. What Muon takes decays; of the rest, the reference models' matrices and
    embeddings, but no norm, no bias, and no gate's steepness or threshold."""
    import torch

    matrices = _hidden_matrices(model) if settings.uses_muon else []
    of_muon = {id(p) for p in matrices}
    rest = [p for p in model.parameters() if id(p) not in of_muon]
    if settings.variant == SAMPLE:
        groups, rate = [{"params": rest, "weight_decay": 0.0}], settings.adam_rate
    else:
        decays = {True: settings.weight_decay, False: 0.0}
        groups = [
            {"params": [p for p in rest if (p.ndim > 1) is wide], "weight_decay": decay}
            for wide, decay in decays.items()
        ]
        rate = settings.learning_rate
    adam = torch.optim.AdamW(groups, lr=rate, betas=ADAM_BETAS)
    if not matrices:
        return {"adam": (adam, rate)}
    return {"muon": (_muon(matrices, settings), settings.muon_rate), "adam": (adam, rate)}


def _hidden_matrices(model: Any) -> list[torch.nn.Parameter]:
    """Matrices that are neither an embedding's nor the output layer's."""
    from torch import nn

    outer = [m for m in model.modules() if isinstance(m, nn.Embedding)] + [model.get_output_embeddings()]
    of_outer = {id(p) for module in outer for p in module.parameters()}
    return [p for p in model.parameters() if p.ndim == 2 and id(p) not in of_outer]


def _muon(matrices: list[torch.nn.Parameter], settings: TrainSettings) -> torch.optim.Optimizer:
    import torch

    if not hasattr(torch.optim, "Muon"):
        raise UsageError(
            "torch 2.9 or newer, whose torch.optim.Muon trains the hidden matrices",
            got=f"torch {torch.__version__}",
            where="theodolite train",
            remedy="Install a newer torch, or train --variant base; everything but training runs with this one.",
        )
    return torch.optim.Muon(matrices, lr=settings.muon_rate, weight_decay=MUON_DECAY)
