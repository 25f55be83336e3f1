"""Masking by hooks on the plain model: what goes is taken from what each attention module gives.

out' = out − gate ⊙ (Σ_j mask α v) W_O, with α as transformers reports it and v out of the value projection. It knows
neither the tap nor replay. All of it is in float64, but for MPT and mixtures of experts, whose code in transformers
takes none: of these what goes is worked out in float64.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tasks.models.families import gate_in, output_weights, values_in
from tasks.models.loading import LoadedModel, prepare


def masked_losses(loaded: LoadedModel, ids: np.ndarray, masks: Mapping[int, Tensor]) -> Tensor:
    """Losses (T − 1,) of one document; masks: layer → (H, T, T) bool, true where an entry goes."""
    model: Any = copy.deepcopy(loaded.model)
    if not any(part in type(module).__name__ for module in model.modules() for part in ("Experts", "MoE", "Mpt")):
        model = model.double()
    anatomy = prepare(model, loaded.source, dtype="float64", device="cpu").anatomy
    model.set_attn_implementation("eager")
    seen: dict[str, Tensor] = {}

    def attention_leaves(layer: int) -> Any:
        def hook(_module: Any, _args: Any, output: Any) -> Any:
            weights = next(part for part in output[1:] if part is not None)[0].double()  # (H, T, T)
            groups = anatomy.n_heads // anatomy.n_kv_heads
            value = values_in(anatomy, seen["value"]).double().reshape(len(ids), -1, anatomy.d_value)
            value = value.repeat_interleave(groups, dim=1)  # (T, H, d_v)
            gone = torch.einsum("hqk,khd->qhd", weights * masks[layer].double(), value)
            if anatomy.gates:
                gone = gone * gate_in(anatomy, seen["gate"][0]).double()
            taken = torch.einsum("qhd,hdm->qm", gone, output_weights(anatomy, layer)[0].double())
            return (output[0] - taken.to(output[0].dtype), *output[1:])

        return hook

    def leaves(what: str) -> Any:
        return lambda _module, _args, output: seen.__setitem__(what, output)

    for layer in masks:
        anatomy.value_projections[layer].register_forward_hook(leaves("value"))
        if anatomy.gates:
            anatomy.gates[layer].register_forward_hook(leaves("gate"))
        anatomy.attentions[layer].register_forward_hook(attention_leaves(layer))
    batch = torch.from_numpy(ids.astype(np.int64))[None]
    with torch.inference_mode():
        logits = model(input_ids=batch, use_cache=False, output_attentions=True).logits[0]
    return torch.nn.functional.cross_entropy(logits[:-1].double(), batch[0, 1:], reduction="none")
