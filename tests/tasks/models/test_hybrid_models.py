"""Gated heads and layers without attention: what the checks of a shard catch, and where a configuration says them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from storage.errors import CaptureCheckError, ModelError
from tasks.models import tap
from tasks.models.anatomy import Anatomy, anatomy_of
from tasks.models.attention_layers import attended_layers
from tasks.models.families import family_of
from tests.families import tiny_model, tokens
from tests.tasks.models.capturing import capture, tiny


def test_a_gate_that_is_not_the_one_applied_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(anatomy: Anatomy, projected: Tensor) -> Tensor:
        gate = real(anatomy, projected).clone()
        gate[0, 5, 2, 3] *= 1.001
        return gate

    real, loaded = tap.gate_in, tiny("qwen3_next")
    monkeypatch.setattr(tap, "gate_in", other)
    expected = r"gate ⊙ Σ α v equal to what .* layer 1, head 2, document 10, row 5\. Nothing"
    with pytest.raises(CaptureCheckError, match=expected):
        capture(loaded, tokens(8))


def test_weights_that_do_not_make_what_is_gated_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = tiny("qwen3_next")
    eager = tap.eager_attention_of(type(loaded.anatomy.attentions[1]))

    def broken(module: Any, *args: Any, **options: Any) -> Any:
        output, weights = eager(module, *args, **options)
        return output * 1.01, weights

    monkeypatch.setattr(tap, "eager_attention_of", lambda _class: broken)
    with pytest.raises(CaptureCheckError, match=r"Σ α v equal to what attention gives within .* layer 1, document 10"):
        capture(loaded, tokens(8))


def test_an_output_that_gated_heads_do_not_give_is_caught() -> None:
    loaded = tiny("qwen3_next")

    def changed(_module: Any, _args: Any, output: Any) -> Any:
        return (output[0] * 1.05, *output[1:])

    loaded.anatomy.attentions[2].register_forward_hook(changed, prepend=True)
    with pytest.raises(CaptureCheckError, match=r"Σ α v W_O \+ b equal to .* layer 2, document 10, row 0"):
        capture(loaded, tokens(8))


@pytest.mark.parametrize("name", ["qwen3_next", "lfm2", "bamba"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_passes_the_checks(name: str, dtype: str) -> None:
    got = capture(tiny(name, dtype=dtype), tokens(29), dtypes={"attention": "float32"})[0]
    assert got.value[0].dtype == getattr(torch, dtype) and (got.nll[1:] > 0).all()


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"model_type": "llama"}, None),
        ({"model_type": "qwen3_next", "num_hidden_layers": 9, "full_attention_interval": 4}, (3, 7)),
        ({"model_type": "lfm2", "num_hidden_layers": 6, "full_attn_idxs": [5, 2]}, (2, 5)),
        ({"model_type": "jamba", "num_hidden_layers": 9, "attn_layer_period": 4, "attn_layer_offset": 2}, (2, 6)),
        ({"model_type": "bamba", "num_hidden_layers": 9, "attn_layer_indices": [4]}, (4,)),
        ({"model_type": "zamba2", "layers_block_type": ["mamba", "hybrid", "mamba"]}, (1,)),
        (
            {
                "model_type": "recurrent_gemma",
                "num_hidden_layers": 5,
                "block_types": ["recurrent", "recurrent", "attention"],
            },
            (2,),
        ),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "M-M*-M*"}, (3, 6)),
    ],
)
def test_a_configuration_says_which_layers_have_attention(
    config: dict[str, Any], expected: tuple[int, ...] | None
) -> None:
    assert attended_layers(config, "here") == expected


def test_a_hybrid_whose_attention_is_nowhere_is_refused() -> None:
    with pytest.raises(ModelError, match=r"LFM2 with at least one layer of attention, got a configuration that does"):
        attended_layers({"model_type": "lfm2", "num_hidden_layers": 3}, "here")
    with pytest.raises(ModelError, match=r"Granite MoE Hybrid with at least one layer of attention, got none, in here"):
        attended_layers({"model_type": "granitemoehybrid", "layer_types": ["mamba", "mamba"]}, "here")


def test_modules_that_are_not_as_the_configuration_says_are_refused() -> None:
    model = tiny_model("lfm2")
    model.config.layer_types = ["full_attention", "conv", "conv"]
    with pytest.raises(ModelError, match=r"attention in the layers \(0,\) of the configuration, got \(1,\)"):
        anatomy_of(model)


def test_adapters_of_shared_attention_are_refused() -> None:
    with pytest.raises(ModelError, match=r"a Zamba2 without adapters of attention, got one that adds an adapter's"):
        family_of({"model_type": "zamba2", "use_shared_attention_adapter": True}, where="m")
