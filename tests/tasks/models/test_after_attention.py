"""The norm after attention, of every tiny model, against what transformers' code says of its family."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from storage.errors import ModelError, UsageError
from tasks.models.after_attention import norms_after, output_scale
from tasks.models.anatomy import Anatomy
from tasks.models.sublayers import norms
from tests.families import DECODERS, ENCODERS, IMAGE_NAMES
from tests.tasks.models.capturing import shared, tiny

OUTPUT = {
    "gemma2": "post_attention_layernorm",
    "gemma3_text": "post_attention_layernorm",
    "gemma3n_text": "post_attention_layernorm",
    "olmo2": "post_attention_layernorm",
    "olmo3": "post_attention_layernorm",
    "olmo_hybrid": "post_attention_layernorm",
    "exaone4": "post_attention_layernorm",
    "glm4": "post_self_attn_layernorm",
    "afmoe": "post_attention_layernorm",
}
"""Families that norm attention's output before the residual is added, and what their code calls that norm."""
SUM = {"opt-350m": "self_attn_layer_norm"}
"""Those that norm the sum, which is then the residual stream."""
REFUSED = {
    "zamba": "Zamba",  # attention's output goes through a norm into an MLP, and no residual is added
    "zamba2": "Zamba2",
    "minimax": "MiniMax",  # the norm's input holds the residual as the norm before left it
    "bloom-post": "BLOOM",
}


@pytest.mark.parametrize("name", [name for name in DECODERS if name not in REFUSED])
def test_every_decoder(name: str) -> None:
    anatomy = shared(name).anatomy
    found = norms_after(anatomy)
    assert tuple(found) == anatomy.attended
    declared = OUTPUT.get(name) or SUM.get(name)
    if declared is None:
        assert set(found.values()) == {None}
        return
    for layer, linear in found.items():
        assert linear is not None and linear.where == ("output" if name in OUTPUT else "sum")
        module: Any = getattr(anatomy.layers[layer], declared)
        assert linear.centres is isinstance(module, nn.LayerNorm)
        y = 3 * torch.randn(7, anatomy.d_model, generator=torch.Generator().manual_seed(5)) + 1
        bias = getattr(module, "bias", None)
        expected = module(y) if bias is None else module(y) - bias
        torch.testing.assert_close(linear.unscaled(y) / linear.scale(y), expected.detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", REFUSED)
def test_a_norm_of_something_else_is_refused(name: str) -> None:
    with pytest.raises(ModelError, match=f"a norm after attention that is of its output.* in {REFUSED[name]}, in lay"):
        norms_after(shared(name).anatomy)


@pytest.mark.parametrize("name", ENCODERS)
def test_encoders_norm_the_sum(name: str) -> None:
    found = norms_after(shared(name).anatomy)
    assert all(linear is not None and linear.where == "sum" and linear.centres for linear in found.values())


@pytest.mark.parametrize("name", IMAGE_NAMES)
def test_encoders_of_images_norm_before(name: str) -> None:
    assert set(norms_after(shared(name).anatomy).values()) == {None}


SCALED = {"granite": 0.4, "granitemoe": 0.4, "granitemoehybrid": 0.4}


@pytest.mark.parametrize("name", DECODERS)
def test_how_much_of_attention_is_added(name: str) -> None:
    anatomy = shared(name).anatomy
    assert output_scale(anatomy, anatomy.attended[0]) == pytest.approx(SCALED.get(name, 1.0), rel=1e-5)


def test_a_multiplier_of_the_layer_is_seen() -> None:
    loaded = tiny("falcon_h1")
    layer: Any = loaded.anatomy.layers[1]
    layer.attn_out_multiplier = 0.3
    assert output_scale(loaded.anatomy, 1) == pytest.approx(0.3, rel=1e-5)
    assert output_scale(tiny("granite", dtype="bfloat16").anatomy, 1) == pytest.approx(0.4, rel=2e-3)


def test_a_scale_for_each_dimension_is_refused() -> None:
    with pytest.raises(ModelError, match="multiplied by one number, got another change in DINOv2, in layer 0"):
        output_scale(tiny("dinov2").anatomy, 0)


def test_each_layer_has_its_own_weight() -> None:
    anatomy = tiny("gemma2").anatomy
    found = norms_after(anatomy)
    first, last = found[0], found[2]
    assert first is not None and last is not None
    layer: Any = anatomy.layers[2]
    torch.testing.assert_close(last.weight, 1 + layer.post_attention_layernorm.weight.detach(), rtol=1e-5, atol=1e-5)
    assert not torch.allclose(first.weight, last.weight, atol=1e-2)


def test_bfloat16_changes_nothing() -> None:
    """The weights are those of float32 rounded; where they stand is found all the same."""
    for name in ("gemma2", "opt-350m", "llama"):
        whole, half = (norms_after(tiny(name, dtype=dtype).anatomy)[1] for dtype in ("float32", "bfloat16"))
        assert (whole is None) == (half is None)
        if whole is not None and half is not None:
            assert (half.where, half.centres, half.eps) == (whole.where, whole.centres, whole.eps)
            torch.testing.assert_close(half.weight, whole.weight, rtol=1e-2, atol=1e-2)


def test_no_hook_stays_and_nothing_changes() -> None:
    loaded = tiny("gemma2")
    ids = torch.arange(5)[None]
    before = loaded.model(input_ids=ids).logits
    hooks = _hooks(loaded.model)
    norms_after(loaded.anatomy)
    assert _hooks(loaded.model) == hooks
    assert torch.equal(loaded.model(input_ids=ids).logits, before)


def _hooks(model: nn.Module) -> int:
    return sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in model.modules())


class _Clipped(nn.Module):
    """Neither a LayerNorm nor an RMSNorm."""

    eps = 1e-5

    def forward(self, vectors: Tensor) -> Tensor:
        return vectors.clamp(-1, 1)


def test_another_kind_of_norm_is_refused() -> None:
    anatomy: Anatomy = tiny("olmo2").anatomy
    assert anatomy.layers[1].post_attention_layernorm in norms(anatomy, 1)
    _Clipped.__name__ = "ClippedNorm"
    anatomy.layers[1].post_attention_layernorm = _Clipped()
    with pytest.raises(ModelError, match=r"a LayerNorm or an RMSNorm after attention, got ClippedNorm of OLMo 2"):
        norms_after(anatomy)


def test_a_layer_without_attention_is_refused() -> None:
    with pytest.raises(UsageError, match=r"a layer with attention, got 2, in OLMo Hybrid. It has 1."):
        output_scale(tiny("olmo_hybrid").anatomy, 2)
