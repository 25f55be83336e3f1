"""The parts that ALTI ranks are all that attention does: with biases they sum to the model's own residual stream.

T_ij = Σ_h α ṽ + [i=j] x_i through the norm after attention, made of what a capture holds and of what the model is asked
(`norms_after`, `output_scale`), against what transformers' code hands to the layer's MLP.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tasks.kernels.layer_scores import Linearised, alti
from tasks.kernels.visibility import Visibility
from tasks.models.after_attention import norms_after, output_scale
from tasks.models.anatomy import output_weights
from tasks.models.loading import LoadedModel
from tests.families import tokens
from tests.oracles.contributions import Oracle
from tests.oracles.masking_scores import term
from tests.tasks.models.capturing import Document, capture, tiny

IDS = tokens(11)[0]
MLP_READS = {
    "llama": "post_attention_layernorm",
    "gpt2": "ln_2",
    "gpt_neox-serial": "post_attention_layernorm",
    "gemma2": "pre_feedforward_layernorm",
    "olmo2": "mlp",
    "granite": "post_attention_layernorm",
    "qwen3_next": "post_attention_layernorm",
    "gpt_oss": "post_attention_layernorm",
    "mistral-window": "post_attention_layernorm",
    "opt-350m": "fc1",
    "bert": "intermediate",
}
"""The module that is given the residual stream after attention, by what the family's code calls it."""


def after_attention(loaded: LoadedModel, name: str) -> dict[int, Tensor]:
    """The residual stream after attention of each layer that has it, (T, D), of the plain model."""
    seen: dict[int, Tensor] = {}
    model, tapped = loaded.model, loaded.model.config._attn_implementation
    hooks = []
    for layer in loaded.anatomy.attended:
        module: Any = loaded.anatomy.layers[layer].get_submodule(MLP_READS[name])

        def enters(_module: Any, given: tuple[Tensor, ...], layer: int = layer) -> None:
            seen[layer] = given[0].reshape(len(IDS), -1)

        hooks.append(module.register_forward_pre_hook(enters))
    model.set_attn_implementation("eager")
    try:
        with torch.inference_mode():
            model(input_ids=torch.from_numpy(IDS.astype(np.int64))[None])
    finally:
        model.set_attn_implementation(tapped)
        for hook in hooks:
            hook.remove()
    return seen


def parts(oracle: Oracle, x: np.ndarray, real: np.ndarray, linear: Linearised | None) -> np.ndarray:
    """T (T, T, D), its norm's scale that of the real vectors."""
    found = np.zeros((oracle.T, oracle.T, x.shape[1]))
    for i in range(oracle.T):
        for j in oracle.visible(i):
            own = x[i] if i == j else np.zeros_like(x[i])
            if linear is None:
                found[i, j] = term(oracle, i, j) + own
            elif linear.where == "output":
                found[i, j] = through(linear, term(oracle, i, j), real[i]) + own
            else:
                found[i, j] = through(linear, term(oracle, i, j) + own, real[i])
    return found


def through(linear: Linearised, part: np.ndarray, real: np.ndarray) -> np.ndarray:
    """The norm without its bias, its scale held at what the real vector gives."""
    spread = np.var(real) if linear.centres else np.mean(real**2)
    weight = linear.weight.double().numpy()
    return np.array(weight * (part - linear.centres * part.mean()) / np.sqrt(spread + linear.eps))


def shares(T: np.ndarray) -> np.ndarray:
    """(T, T): how much closer each part brings the sum, as a share of the row."""
    whole = T.sum(1)
    closer = np.abs(whole).sum(-1)[:, None] - np.abs(whole[:, None] - T).sum(-1)
    closer = np.maximum(closer, 0) * (np.abs(T).sum(-1) > 0)
    return closer / closer.sum(1, keepdims=True)


@pytest.mark.parametrize("name", MLP_READS)
def test_the_parts_sum_to_the_residual_stream_after_attention(name: str) -> None:
    loaded = tiny(name)
    document, wanted = capture(loaded, [IDS])[0], after_attention(loaded, name)
    norms = norms_after(loaded.anatomy)
    assert wanted.keys() == norms.keys() == set(loaded.anatomy.attended)
    for at, layer in enumerate(loaded.anatomy.attended):
        linear, scale = norms[layer], output_scale(loaded.anatomy, layer)
        projection, bias = (None if t is None else t * scale for t in output_weights(loaded.anatomy, layer))
        assert projection is not None
        x, oracle = document.residual[layer].double().numpy(), made(loaded, document, at, projection)
        constant = np.zeros(x.shape[1]) if bias is None else bias.double().numpy()
        real = oracle.output.sum(0) + constant + (x if linear is not None and linear.where == "sum" else 0)
        T = parts(oracle, x, real, linear)
        if linear is not None:
            constant = np.array([through(linear, constant, row) for row in real]) + own_bias(loaded, layer, linear)
        error = np.abs(T.sum(1) + constant - wanted[layer].double().numpy()).max()
        assert error <= 1e-5 * max(1, float(wanted[layer].abs().max())), f"layer {layer}: {error}"

        found = alti(
            document.attention[at],
            document.value[at],
            projection,
            document.residual[layer],
            bias=bias,
            linear=linear,
            gate=document.gate[at] if document.gate else None,
            visibility=Visibility(loaded.anatomy.windows[layer], loaded.anatomy.causal),
        )
        np.testing.assert_allclose(found.numpy(), shares(T), rtol=1e-3, atol=1e-5)


def made(loaded: LoadedModel, document: Document, at: int, projection: Tensor) -> Oracle:
    return Oracle(
        document.attention[at].numpy(),
        document.value[at].numpy(),
        projection.numpy(),
        loaded.anatomy.windows[loaded.anatomy.attended[at]],
        gate=document.gate[at].numpy() if document.gate else None,
        causal=loaded.anatomy.causal,
    )


def own_bias(loaded: LoadedModel, layer: int, linear: Linearised) -> np.ndarray:
    """What the norm after attention adds: of a LayerNorm its bias."""
    if not linear.centres:
        return np.zeros(len(linear.weight))
    names = {"self_attn_layer_norm", "attention.output.LayerNorm"}
    (norm,) = (m for n, m in loaded.anatomy.layers[layer].named_modules() if n in names)
    bias: Any = norm.bias
    return np.array(bias.detach().double().numpy())
