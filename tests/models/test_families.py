"""The table of families, what is read off a model, and what is refused by name."""

from __future__ import annotations

import pytest
import torch
import transformers
from torch.testing import assert_close

from storage.errors import ModelError
from tasks.models.families import FAMILIES, anatomy_of, family_of, max_positions, output_weights, value_weight_norms
from tests.families import CONFIGS, NAMES, tiny_model, tokens
from tests.models.capturing import capture, tiny


def test_every_family_has_a_tiny_model() -> None:
    assert {config().model_type for config in CONFIGS.values()} == set(FAMILIES)


@pytest.mark.parametrize("name", NAMES)
def test_anatomy_reads_the_sizes_off_the_model(name: str) -> None:
    model = tiny_model(name)
    anatomy, config = anatomy_of(model), model.config
    assert (anatomy.family, anatomy.n_layers, anatomy.n_heads) == (config.model_type, 3, config.num_attention_heads)
    assert anatomy.norm in ("layernorm", "rmsnorm")
    norms = {type(m).__name__.lower() for n, m in anatomy.layers[0].named_modules() if "norm" in n or n == "ln_1"}
    assert any(anatomy.norm in kind for kind in norms)
    got = capture(tiny(name), tokens(5))[0]
    assert got.value[0].shape == (5, anatomy.n_kv_heads, anatomy.d_value)
    assert got.output_input[0].shape == (5, anatomy.n_heads, anatomy.d_value)
    assert got.residual[0].shape == (5, anatomy.d_model)
    assert len(got.attention) == 3 and len(got.residual) == 4


@pytest.mark.parametrize("name", NAMES)
def test_the_heads_of_w_o_add_up_to_the_projection(name: str) -> None:
    anatomy = anatomy_of(tiny_model(name))
    heads = torch.randn(7, anatomy.n_heads, anatomy.d_value)
    for layer, projection in enumerate(anatomy.output_projections):
        w_o, bias = output_weights(anatomy, layer)
        assert w_o.dtype == torch.float32 and w_o.shape == (anatomy.n_heads, anatomy.d_value, anatomy.d_model)
        with torch.no_grad():
            want = projection(heads.flatten(1))
        got = torch.einsum("thd,hdm->tm", heads, w_o) + (0 if bias is None else bias)
        assert_close(got, want, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_value_norms_are_of_the_matrix_that_makes_the_value(name: str) -> None:
    """W_V^h by its action: the value of each unit vector that enters the attention, less that of zero."""
    loaded = tiny(name)
    anatomy = loaded.anatomy
    seen: list[torch.Tensor] = []
    part = {"v_proj": "v_proj", "last_third": "c_attn", "third_per_head": "query_key_value"}[anatomy.kind.value]
    module = anatomy.attentions[1].get_submodule(part)
    with torch.no_grad():
        inputs = torch.cat([torch.eye(anatomy.d_model), torch.zeros(1, anatomy.d_model)])
        out = module(inputs)
    width = anatomy.d_value
    if anatomy.kind.value == "v_proj":
        value = out.reshape(-1, anatomy.n_kv_heads, width)
    elif anatomy.kind.value == "last_third":
        value = out.split(anatomy.d_model, dim=-1)[2].reshape(-1, anatomy.n_heads, width)
    else:
        value = out.reshape(-1, anatomy.n_heads, 3 * width).chunk(3, dim=-1)[2]
    seen = [(value[:-1, h] - value[-1, h]).norm() for h in range(value.shape[1])]
    assert_close(value_weight_norms(anatomy, 1), torch.stack(seen), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("model_type", ["bloom", "mamba", "bert", "deepseek_v3", "gemma3"])
def test_other_families_are_refused_by_name(model_type: str) -> None:
    message = rf"a family whose attention can be captured, got '{model_type}', in m\. Supported: .*GPT-2.*Llama.*Qwen3"
    with pytest.raises(ModelError, match=message):
        family_of({"model_type": model_type}, where="m")


def test_a_model_in_memory_of_another_family_is_refused_before_it_runs() -> None:
    config = transformers.BloomConfig(vocab_size=32, hidden_size=16, n_layer=1, n_head=2)
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.forward = None  # a forward pass would fail otherwise
    with pytest.raises(ModelError, match="got 'bloom'"):
        anatomy_of(model)


def test_a_body_without_a_head_is_refused() -> None:
    with pytest.raises(ModelError, match="a causal LM of the family Llama, got LlamaModel"):
        anatomy_of(tiny_model("llama").model)


def test_what_looks_both_ways_and_what_has_no_matrix_is_refused() -> None:
    with pytest.raises(ModelError, match="a causal Gemma 3, got one whose attention looks both ways"):
        family_of({"model_type": "gemma3_text", "use_bidirectional_attention": True}, where="m")
    with pytest.raises(ModelError, match="layers of full or sliding attention, got linear_attention"):
        family_of({"model_type": "qwen3", "layer_types": ["full_attention", "linear_attention"]}, where="m")


def test_positions_are_read_under_either_name() -> None:
    assert max_positions({"n_positions": 1024}) == 1024
    assert max_positions({"max_position_embeddings": 2048}) == 2048
    assert max_positions({}) is None
