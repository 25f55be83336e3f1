"""Masking by hooks on the plain model: what goes is taken from what each attention module gives.

out' = out − gate ⊙ (Σ_j mask α v) W_O, with α as transformers reports it and v out of the value projection. It knows
neither the tap nor replay. All of it is in float64, but for MPT and mixtures of experts, whose code in transformers
takes none: of these what goes is worked out in float64.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tasks.models.anatomy import gate_in, output_weights, values_in
from tasks.models.loading import LoadedModel, prepare


@dataclass(frozen=True)
class Attended:
    """What attention of one layer had in a clean pass, float64."""

    attention: Tensor
    """(H, T, T)"""
    value: Tensor
    """(T, H_kv, d_v)"""
    gate: Tensor | None
    """(T, H, d_v)"""
    projection: Tensor
    """(H, d_v, D)"""
    bias: Tensor | None
    """(D,), of the projection."""
    residual: Tensor
    """(T, D), before the layer."""


class PlainModel:
    """The weights of a loaded model under transformers' own eager attention, in float64, with entries to be taken."""

    def __init__(self, loaded: LoadedModel) -> None:
        model: Any = copy.deepcopy(loaded.model)
        if not any(part in type(module).__name__ for module in model.modules() for part in ("Experts", "MoE", "Mpt")):
            model = model.double()
        self._model = model
        self.anatomy = prepare(model, loaded.source, dtype="float64", device="cpu").anatomy
        model.set_attn_implementation("eager")
        self._masks: Mapping[int, Tensor] = {}
        self._projected: dict[str, Tensor] = {}
        self._weights: dict[int, Tensor] = {}
        self._value: dict[int, Tensor] = {}
        self._gate: dict[int, Tensor] = {}
        for layer in self.anatomy.attended:
            self.anatomy.value_projections[layer].register_forward_hook(self._leaves("value"))
            if self.anatomy.gates:
                self.anatomy.gates[layer].register_forward_hook(self._leaves("gate"))
            self.anatomy.attentions[layer].register_forward_hook(self._attention_leaves(layer))

    def losses(self, ids: np.ndarray, masks: Mapping[int, Tensor]) -> Tensor:
        """Losses (T − 1,) of one document; masks: layer → (H, T, T) bool, true where an entry goes."""
        self._masks = masks
        logits, batch = self._run(ids).logits[0], torch.from_numpy(ids.astype(np.int64))
        return torch.nn.functional.cross_entropy(logits[:-1].double(), batch[1:], reduction="none")

    def clean(self, ids: np.ndarray) -> dict[int, Attended]:
        """What each layer that has attention saw of one document."""
        self._masks = {}
        residual = self._run(ids, output_hidden_states=True).hidden_states
        found = {}
        for layer in self.anatomy.attended:
            projection, bias = output_weights(self.anatomy, layer)
            found[layer] = Attended(
                self._weights[layer],
                self._value[layer],
                self._gate.get(layer),
                projection.double(),
                None if bias is None else bias.double(),
                residual[layer][0].double(),
            )
        return found

    def _run(self, ids: np.ndarray, **options: bool) -> Any:
        batch = torch.from_numpy(ids.astype(np.int64))[None]
        with torch.inference_mode():
            return self._model(input_ids=batch, use_cache=False, output_attentions=True, **options)

    def _leaves(self, what: str) -> Any:
        return lambda _module, _args, output: self._projected.__setitem__(what, output)

    def _attention_leaves(self, layer: int) -> Any:
        def hook(_module: Any, _args: Any, output: Any) -> Any:
            weights = next(part for part in output[1:] if part is not None)[0].double()  # (H, T, T)
            value = values_in(self.anatomy, self._projected["value"]).double()
            value = value.reshape(weights.shape[1], -1, self.anatomy.d_value)  # (T, H_kv, d_v)
            self._weights[layer], self._value[layer] = weights, value
            if self.anatomy.gates:
                self._gate[layer] = gate_in(self.anatomy, self._projected["gate"][0]).double()
            if layer not in self._masks:
                return output
            taken = self._taken(layer, weights * self._masks[layer].double(), value)
            return (output[0] - taken.to(output[0].dtype), *output[1:])

        return hook

    def _taken(self, layer: int, weights: Tensor, value: Tensor) -> Tensor:
        """What these weights alone would give, (T, D)."""
        groups = self.anatomy.n_heads // self.anatomy.n_kv_heads
        gone = torch.einsum("hqk,khd->qhd", weights, value.repeat_interleave(groups, dim=1))
        if self.anatomy.gates:
            gone = gone * self._gate[layer]
        return torch.einsum("qhd,hdm->qm", gone, output_weights(self.anatomy, layer)[0].double())


def masked_losses(loaded: LoadedModel, ids: np.ndarray, masks: Mapping[int, Tensor]) -> Tensor:
    """Losses (T − 1,) of one document; masks: layer → (H, T, T) bool, true where an entry goes."""
    return PlainModel(loaded).losses(ids, masks)
