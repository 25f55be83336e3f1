"""The plain float64 model whose layers' outputs are moved by hooks; it knows neither the tap nor replay."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from tasks.models.loading import LoadedModel
from tests.oracles.masking import PlainModel

Rule = Callable[[np.ndarray], np.ndarray]
"""What leaves a layer (T, D) float64 → what is to leave it."""


@dataclass
class Passed:
    """What one pass over one document gave."""

    losses: np.ndarray
    """(T − 1,)"""
    before: dict[int, np.ndarray] = field(default_factory=dict)
    """Layer → what would have left it, (T, D)."""
    after: dict[int, np.ndarray] = field(default_factory=dict)
    """Layer → what left it, (T, D)."""
    attention: dict[int, np.ndarray] = field(default_factory=dict)
    """Layer → weights (H, T, T)."""

    def entropy(self, first: int) -> float:
        """Mean over the layers with attention after `first`, heads and queries of −Σ α log α, or NaN."""
        of_rows = []
        for layer, weights in self.attention.items():
            if layer > first:
                for row in weights.reshape(-1, weights.shape[-1]):
                    of_rows.append(-sum(float(a) * float(np.log(a)) for a in row if a > 0))
        return float(np.mean(of_rows)) if of_rows else float("nan")


class DisplacedModel(PlainModel):
    """Layers count as a residual stream that leaves them; rules are applied where they leave."""

    def __init__(self, loaded: LoadedModel) -> None:
        super().__init__(loaded)
        self._rules: Mapping[int, Rule] = {}
        self._passed = Passed(np.empty(0))
        for layer, module in enumerate(self.anatomy.layers):
            module.register_forward_hook(self._layer_leaves(layer))

    def passed(self, ids: np.ndarray, rules: Mapping[int, Rule]) -> Passed:
        """One document with what leaves these layers changed."""
        self._rules, self._passed = rules, Passed(np.empty(0))
        self._passed.losses = self.losses(ids, {}).numpy()
        self._passed.attention = {layer: weights.numpy() for layer, weights in self._weights.items()}
        return self._passed

    def _layer_leaves(self, layer: int) -> Any:
        def hook(_module: Any, _args: Any, output: Any) -> Any:
            hidden = output[0] if isinstance(output, tuple) else output
            before = hidden[0].double().numpy()
            rule = self._rules.get(layer)
            after = before if rule is None else rule(before)
            self._passed.before[layer], self._passed.after[layer] = before, after
            changed = torch.from_numpy(after)[None].to(hidden.dtype)
            return (changed, *output[1:]) if isinstance(output, tuple) else changed

        return hook
