"""The table of families, what is read off a model, and what is refused by name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers
from torch.testing import assert_close

import flows
import storage
import tasks
from storage.errors import ModelError
from tasks.models.anatomy import anatomy_of, output_weights, value_weight_norms, values_in
from tasks.models.families import family_of, max_positions
from tasks.models.refused import REFUSED
from tasks.models.table import FAMILIES
from tests.families import CONFIGS, IMAGE_CONFIGS, NAMES, tiny_model, tokens
from tests.tasks.models.capturing import capture, shared, tiny


def test_every_family_has_a_tiny_model() -> None:
    assert {config().model_type for config in (CONFIGS | IMAGE_CONFIGS).values()} == set(FAMILIES)


@pytest.mark.parametrize("name", NAMES)
def test_anatomy_reads_the_sizes_off_the_model(name: str) -> None:
    model = shared(name).model
    anatomy, config = anatomy_of(model), model.config
    assert (anatomy.family, anatomy.n_layers, anatomy.n_heads) == (config.model_type, 3, config.num_attention_heads)
    assert anatomy.norm in ("layernorm", "rmsnorm")
    norms = {type(m).__name__.lower() for m in anatomy.layers[0].modules()}
    assert any(anatomy.norm in kind for kind in norms)
    got = capture(shared(name), tokens(5))[0]
    assert got.value[0].shape == (5, anatomy.n_kv_heads, anatomy.d_value)
    assert got.output_input[0].shape == (5, anatomy.n_heads, anatomy.d_value)
    assert got.residual[0].shape == (5, anatomy.n_streams * anatomy.d_model)
    assert len(got.attention) == len(anatomy.attended) and len(got.residual) == 4
    assert (len(anatomy.attended) < 3) is anatomy.kind.hybrid and set(anatomy.gates) <= set(anatomy.attended)


@pytest.mark.parametrize("name", NAMES)
def test_the_heads_of_w_o_add_up_to_the_projection(name: str) -> None:
    anatomy = anatomy_of(shared(name).model)
    heads = torch.randn(7, anatomy.n_heads, anatomy.d_value)
    for layer, projection in anatomy.output_projections.items():
        w_o, bias = output_weights(anatomy, layer)
        assert w_o.dtype == torch.float32 and w_o.shape == (anatomy.n_heads, anatomy.d_value, anatomy.d_model)
        with torch.no_grad():
            want = projection(heads.flatten(1))
        got = torch.einsum("thd,hdm->tm", heads, w_o) + (0 if bias is None else bias)
        assert_close(got, want, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_value_norms_are_of_the_matrix_that_makes_the_value(name: str) -> None:
    """W_V^h by its action: the value of each unit vector, less that of zero, as the family's own attention uses it."""
    anatomy = shared(name).anatomy
    layer = anatomy.attended[-1]
    projection = anatomy.value_projections[layer]
    width = projection.get_parameter("weight").shape[0 if type(projection).__name__ == "Conv1D" else 1]
    with torch.no_grad():
        out = values_in(anatomy, projection(torch.cat([torch.eye(width), torch.zeros(1, width)])))
    norms = [(out[:-1, h] - out[-1, h]).norm() for h in range(anatomy.n_kv_heads)]
    assert_close(value_weight_norms(anatomy, layer), torch.stack(norms), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_values_are_where_the_table_says(name: str) -> None:
    """The layout of a fused projection, held against the values that the family's attention is given or uses."""
    loaded, ids = shared(name), tokens(9)
    seen: list[torch.Tensor] = []
    projections = list(loaded.anatomy.value_projections.values())
    projection = projections[-1]
    hook = projection.register_forward_hook(lambda _m, _a, out: seen.append(out[0]))
    got = capture(loaded, ids)[0]
    hook.remove()
    heard = sum(p is projection for p in projections[:-1])  # ALBERT's module runs in earlier layers too
    heard = 0 if loaded.anatomy.kind.shares_values else heard  # where later layers reuse what came out, it ran once
    want = values_in(loaded.anatomy, seen[heard]).reshape(got.value[-1].shape)
    if name == "mpt-clipped":
        assert want.abs().max() > 0.5
        want = want.clamp(-0.5, 0.5)
    if name == "gemma3n_text":  # which norms its values
        want = want / (want.square().mean(-1, keepdim=True) + loaded.model.config.rms_norm_eps).sqrt()
    assert_close(want, got.value[-1])


def test_how_the_tap_reaches_a_family_is_what_the_table_says() -> None:
    if int(transformers.__version__.split(".")[0]) >= 5:
        models = {name: shared(name) for name in NAMES}
        assert {n: m.tap_method for n, m in models.items()} == {n: m.anatomy.kind.way for n, m in models.items()}


def test_layers_that_are_shared_are_captured_each() -> None:
    """ALBERT runs one module in every layer: attention differs from layer to layer, the weights do not."""
    loaded = tiny("albert")
    assert len(set(loaded.anatomy.layers)) == 1 and loaded.anatomy.n_layers == 3
    got = capture(loaded, tokens(9))[0]
    assert not torch.equal(got.attention[0], got.attention[1])
    assert len(set(tiny("albert-groups").anatomy.layers)) == 2


@pytest.mark.parametrize("model_type", ["mamba", "t5", "gemma3", "diffllama"])
def test_a_family_that_cannot_be_captured_is_refused_with_the_reason(model_type: str) -> None:
    reason = re.escape(REFUSED[model_type])
    with pytest.raises(ModelError, match=rf"can be captured, got '{model_type}': {reason}, in m\. `theodolite models`"):
        family_of({"model_type": model_type}, where="m")


def test_an_unknown_family_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match=r"can be captured, got 'blerp', in m\. `theodolite models` lists"):
        family_of({"model_type": "blerp"}, where="m")
    assert not set(REFUSED) & set(FAMILIES)


def test_a_model_in_memory_of_another_family_is_refused_before_it_runs() -> None:
    model = transformers.AutoModel.from_config(transformers.MambaConfig(vocab_size=32, hidden_size=16))
    model.forward = None  # a forward pass would fail otherwise
    with pytest.raises(ModelError, match="got 'mamba'"):
        anatomy_of(model)


def test_an_encoder_with_a_head_or_made_a_decoder_is_refused() -> None:
    config = tiny_model("bert").config
    with pytest.raises(ModelError, match="an encoder without a head of the family BERT, got BertForMaskedLM"):
        anatomy_of(transformers.AutoModelForMaskedLM.from_config(config))
    with pytest.raises(ModelError, match=r"BERT as the encoder it was made as, got one that is a decoder"):
        family_of({"model_type": "bert", "is_decoder": True}, where="m")


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
    assert max_positions({"max_seq_len": 512}) == 512
    assert max_positions({"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 1}) == 512
    assert max_positions({}) is None


def _strings(path: Path) -> Iterator[str]:
    """Every whole string of a module's code."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_a_family_is_named_in_the_table_alone() -> None:
    """What the code knows of a family is on its row. gguf.py translates llama.cpp's names, ega.py is a family."""
    code = [path for floor in (flows, tasks, storage) for path in Path(floor.__path__[0]).rglob("*.py")]
    named = {path.name for path in code if {*FAMILIES, *REFUSED} & {*_strings(path)}}
    assert named == {"table.py", "refused.py", "gguf.py", "ega.py"}
