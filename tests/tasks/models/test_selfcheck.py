"""Each capture-time check, by breaking what it guards."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from transformers.models.gemma2 import modeling_gemma2
from transformers.models.gpt_oss import modeling_gpt_oss
from transformers.models.llama import modeling_llama

from storage.errors import CaptureCheckError
from tasks.models import selfcheck
from tasks.models.anatomy import Anatomy
from tasks.models.selfcheck import Place
from tests.families import tokens
from tests.tasks.models.capturing import capture, tiny

Weights = Callable[[Tensor], Tensor]


def break_attention(monkeypatch: pytest.MonkeyPatch, module: Any, change: Weights, layer: int = 1) -> None:
    """The family's eager attention with its weights changed in one layer, the output following the changed weights."""
    eager = module.eager_attention_forward

    def broken(attention: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any) -> Any:
        output, weights = eager(attention, query, key, value, mask, **options)
        if attention.layer_idx != layer:
            return output, weights
        weights = change(weights.clone())
        repeated = value.repeat_interleave(weights.shape[1] // value.shape[1], dim=1)
        return (weights @ repeated).transpose(1, 2), weights

    monkeypatch.setattr(module, "eager_attention_forward", broken)


def test_an_unbroken_copy_of_attention_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the tests below: what they put in the place of attention is caught for what it changes."""
    break_attention(monkeypatch, modeling_llama, lambda weights: weights)
    capture(tiny("llama"), tokens(9, 20))


def test_a_leak_from_the_future_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def leak(weights: Tensor) -> Tensor:
        if weights.shape[-1] == 24:  # queries 16 to 23 of the second document
            weights[1, 2, 3, 20] = 1e-12
        return weights

    break_attention(monkeypatch, modeling_llama, leak)
    expected = (
        r"no weight on a later key, got 1e-12 on key 20, "
        r"in model tiny-llama, layer 1, head 2, document 11, row 19"
    )
    with pytest.raises(CaptureCheckError, match=expected):
        capture(tiny("llama"), tokens(9, 24))


def test_attention_without_a_mask_is_caught() -> None:
    """What a name without a mask function does: transformers then passes no mask at all."""
    loaded = tiny("llama")
    loaded.anatomy.layers[0].register_forward_pre_hook(
        lambda _m, args, kwargs: (args, {**kwargs, "attention_mask": None}), with_kwargs=True
    )
    with pytest.raises(CaptureCheckError, match=r"no weight on a later key.*layer 0, head 0, document 10, row 0"):
        capture(loaded, tokens(9))


def test_weight_outside_the_window_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def look_back(weights: Tensor) -> Tensor:
        weights[0, 1, 7, 0] = 1e-9  # row 7 of the document, its first key: the window is 6
        return weights

    break_attention(monkeypatch, modeling_gemma2, look_back, layer=0)
    with pytest.raises(CaptureCheckError, match=r"outside the window of 6 keys, got 1e-09 on key 0.*layer 0.*row 7"):
        capture(tiny("gemma2"), tokens(8))


def test_lost_mass_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(weights: Tensor) -> Tensor:
        weights[0, 3, 4] *= 0.99
        return weights

    break_attention(monkeypatch, modeling_llama, lose)
    expected = r"sums to 1, got 0.99, in model tiny-llama, layer 1, head 3, document 10, row 4"
    with pytest.raises(CaptureCheckError, match=expected):
        capture(tiny("llama"), tokens(8))


def test_mass_on_padding_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def pad(weights: Tensor) -> Tensor:
        if weights.shape[0] == 2:
            weights[0, 0, 19, 0], weights[0, 0, 19, 19] = 0.25, 0.75  # key 0 fills up the first document
            weights[0, 0, 19, 1:19] = 0
        return weights

    break_attention(monkeypatch, modeling_llama, pad)
    with pytest.raises(CaptureCheckError, match=r"sums to 1, got 0.75.*head 0, document 10, row 8"):
        capture(tiny("llama"), tokens(9, 20), padding="left", query_block=32)


def test_a_wrong_sink_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that were renormalised sum to 1, and lack the mass that the sink's logit says it took."""
    break_attention(monkeypatch, modeling_gpt_oss, lambda weights: weights / weights.sum(-1, keepdim=True))
    with pytest.raises(CaptureCheckError, match=r"sums to -?[01]\.\d+, got 1, in model tiny-gpt_oss, layer 1, head 0"):
        capture(tiny("gpt_oss"), tokens(8))


def test_an_output_that_attention_does_not_give_is_caught() -> None:
    loaded = tiny("llama")

    def gate(_module: Any, _args: Any, output: Any) -> Any:
        changed = output[0].clone()
        changed[0, 5] *= 1.05
        return (changed, *output[1:])

    # before the tap's own hook, as a family would that changes what leaves the projection
    loaded.anatomy.attentions[2].register_forward_hook(gate, prepend=True)
    with pytest.raises(CaptureCheckError, match=r"Σ α v W_O \+ b equal to .* layer 2, document 10, row 5"):
        capture(loaded, tokens(8))


def test_weights_that_are_not_numbers_are_caught() -> None:
    loaded = tiny("llama")
    loaded.anatomy.output_projections[1].get_parameter("weight")[0, 0] = math.nan
    expected = r"a finite attention output, got nan \(1 entries\), in model tiny-llama, layer 1, document 10, row 0"
    with pytest.raises(CaptureCheckError, match=expected):
        capture(loaded, tokens(8))


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("model.embed_tokens.weight", r"a finite residual stream, got nan .*layer 0, document 10, row 0"),
        ("model.layers.1.self_attn.v_proj.weight", r"a finite value, got nan .*layer 1, document 10, row 0"),
        ("model.layers.1.self_attn.q_proj.weight", r"finite attention, got nan on key \d+.*layer 1.*document 10"),
        ("model.layers.2.mlp.down_proj.weight", r"a finite residual stream, got nan .*layer 3, document 10, row 0"),
        ("lm_head.weight", r"a finite likelihood of the next token, got nan .*model tiny-llama, document 10, row 0"),
    ],
)
def test_the_first_place_that_is_not_finite_is_named(part: str, message: str) -> None:
    loaded = tiny("llama")
    loaded.model.get_parameter(part).fill_(math.nan)
    with pytest.raises(CaptureCheckError, match=message):
        capture(loaded, tokens(8))


def test_infinity_is_caught_and_large_finite_numbers_are_not() -> None:
    place = Place("m", 0)
    large = torch.full((4, 8), 3e38)  # their sum overflows float32
    selfcheck.check_finite(large, "value", place)
    selfcheck.check_finite(torch.full((4, 600), 60000.0, dtype=torch.float16), "value", place)
    large[2, 1] = math.inf
    with pytest.raises(CaptureCheckError, match=r"a finite value, got inf \(1 entries\), in model m, layer 0, row 2"):
        selfcheck.check_finite(large, "value", place)


def test_a_tap_that_does_not_fire_is_caught() -> None:
    loaded = tiny("llama")
    loaded.model.set_attn_implementation("eager")
    with pytest.raises(
        CaptureCheckError, match=r"fire once per attention layer.*got 0 times, in model tiny-llama, layer 0"
    ):
        capture(loaded, tokens(8))


def test_a_tap_that_fires_twice_is_caught() -> None:
    loaded = tiny("llama")
    attention = loaded.anatomy.attentions[1]
    forward = attention.forward

    def twice(*args: Any, **kwargs: Any) -> Any:
        forward(*args, **kwargs)
        return forward(*args, **kwargs)

    attention.forward = twice
    with pytest.raises(CaptureCheckError, match=r"got 2 times, in model tiny-llama, layer 1"):
        capture(loaded, tokens(8))


def test_a_layer_that_is_skipped_is_caught() -> None:
    loaded = tiny("llama")
    loaded.anatomy.body.config.num_hidden_layers = 2
    with pytest.raises(CaptureCheckError, match=r"got 0 times, in model tiny-llama, layer 2"):
        capture(loaded, tokens(8))


def test_a_breach_leaves_no_tap_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = tiny("llama")
    with monkeypatch.context() as broken:
        break_attention(broken, modeling_llama, lambda weights: weights * 0.5)
        with pytest.raises(CaptureCheckError):
            capture(loaded, tokens(8))
    capture(loaded, tokens(8))


def test_the_projected_identity_is_blind_to_rounding_and_sees_a_small_error() -> None:
    """At SmolLM2's sizes: float32's own rounding passes, an error of 2 % in one head of one row does not."""
    generator = torch.Generator().manual_seed(5)
    n_heads, d_value, d_model, length = 9, 64, 576, 128
    w_o = torch.randn(n_heads, d_value, d_model, generator=generator) / d_model**0.5
    heads = torch.randn(length, n_heads, d_value, generator=generator)
    directions = torch.randn(d_model, 4, generator=generator)
    gains = w_o.flatten(1).norm(dim=1) / d_value**0.5
    probe = selfcheck.OutputProbe(directions, w_o @ directions, 0.0, gains)
    seen = torch.einsum("thd,hdk->tk", heads, probe.weights)
    output = torch.einsum("thd,hdm->tm", heads, w_o)
    selfcheck.check_output(seen, output, heads, probe, Place("m"))
    wrong = output.clone()
    wrong[40] += 0.02 * heads[40, 3] @ w_o[3]
    with pytest.raises(CaptureCheckError, match="row 40"):
        selfcheck.check_output(seen, wrong, heads, probe, Place("m"))


def test_the_sinks_mass_follows_from_its_logit() -> None:
    generator = torch.Generator().manual_seed(9)
    query, key = torch.randn(4, 5, 16, generator=generator), torch.randn(2, 7, 16, generator=generator)
    sinks = torch.randn(4, generator=generator)
    scores = query @ key.repeat_interleave(2, dim=0).transpose(1, 2) * 0.25
    full = torch.cat([scores, sinks[:, None, None].expand(4, 5, 1)], dim=-1).softmax(-1)
    mass, slack = selfcheck.learned_sink_mass(full[..., :-1], query, key, sinks, scaling=0.25)
    assert_close(mass, full[..., -1], atol=1e-6, rtol=1e-5)
    assert (slack < 1e-5).all()


def test_directions_do_not_depend_on_the_order_of_execution() -> None:
    torch.manual_seed(1)
    first = selfcheck._directions(48, torch.device("cpu")).clone()
    selfcheck._directions.cache_clear()
    torch.manual_seed(2)
    assert torch.equal(first, selfcheck._directions(48, torch.device("cpu")))


def test_the_probe_is_the_projection_along_its_directions() -> None:
    for name in ("gpt2", "llama"):
        anatomy: Anatomy = tiny(name).anatomy
        probe = selfcheck.OutputProbe.of(anatomy, 0)
        heads = torch.randn(3, anatomy.n_heads, anatomy.d_value)
        with torch.inference_mode():
            output = anatomy.output_projections[0](heads.flatten(1))
        seen = torch.einsum("thd,hdk->tk", heads, probe.weights)
        assert_close(seen + probe.bias, output @ probe.directions, atol=1e-4, rtol=1e-4)
