"""Attention rebuilt from query and key is what the model computed, on every family; what is not, stops the shard."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers.models.llama import modeling_llama

from storage.errors import CaptureCheckError, ModelError
from storage.rebuild import rebuilt_attention
from storage.store_shape import StoreShape
from tasks.capture.run import store_shape
from tasks.models.families import require_rebuildable, why_not
from tasks.models.loading import LoadedModel
from tasks.models.packing import Packing
from tasks.models.rebuild import AttentionCall, rebuild_of, sink_logits
from tasks.models.run import TapSettings, attention_calls, capture_batch
from tasks.models.table import FALLBACK
from tests.families import NAMES, tokens
from tests.tasks.models.capturing import capture, plain_of, shared, tiny

Emitted = dict[tuple[int, str], Tensor]
LENGTHS = (29, 7, 1)


def emitted(loaded: LoadedModel, shape: StoreShape, padding: str = "right") -> Emitted:
    """What a capture of three documents hands to a store of this shape."""
    found: Emitted = {}
    settings = TapSettings(8, padding, shape.dtypes, Packing.of(shape))
    ids = tokens(*LENGTHS)
    capture_batch(loaded, ids, settings, lambda layer, kind, t: found.update({(layer, kind): t}), [10, 11, 12])
    return found


def shape_of(loaded: LoadedModel, store_dtype: str = "float32", **settings: Any) -> StoreShape:
    return store_shape(loaded, {"attention": "rebuilt", "store_dtype": store_dtype, **settings})


def rebuilt(loaded: LoadedModel, shape: StoreShape, found: Emitted, layer: int) -> list[Tensor]:
    terms = shape.terms(layer, sink_logits(loaded.anatomy, layer))
    pairs = [found[layer, kind].float().split(LENGTHS) for kind in ("query", "key")]
    return [rebuilt_attention(query, key, terms) for query, key in zip(*pairs, strict=True)]


def error(a: Tensor, b: Tensor) -> float:
    assert a.shape == b.shape
    return (a - b).abs().max().item()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("padding", ["right", "left"])
def test_rebuilt_attention_is_the_tapped_and_the_plain_models(name: str, padding: str) -> None:
    loaded = shared(name)
    if loaded.tap_method == FALLBACK:
        with pytest.raises(ModelError, match=r"shows query and key.*inside its own module.*--attention stored"):
            shape_of(loaded)
        return
    if padding == "left" and not loaded.anatomy.kind.left_padding:
        return
    shape = shape_of(loaded)
    if why_not(loaded.model.config.to_dict()) is not None:
        with pytest.raises(CaptureCheckError, match=r"attention rebuilt from query and key.*--attention stored"):
            emitted(loaded, shape, padding)
        return
    found = emitted(loaded, shape, padding)
    assert not [kind for _, kind in found if kind in ("attention", "sink_mass")]
    tapped = capture(loaded, tokens(*LENGTHS), padding=padding)
    want = plain_of(loaded, tokens(*LENGTHS)[0]).attentions
    for at, layer in enumerate(loaded.anatomy.attended):
        got = rebuilt(loaded, shape, found, layer)
        assert max(error(g, t.attention[at]) for g, t in zip(got, tapped, strict=True)) <= 1e-5
        assert error(got[0], want[at]) <= 1e-5
        assert not loaded.anatomy.causal or (got[0].triu(1) == 0).all()


def test_terms_are_what_the_families_add() -> None:
    gemma, oss, scaled = (shape_of(shared(name)) for name in ("gemma2", "gpt_oss", "gpt2-layer-scaled"))
    assert gemma.rebuild and oss.rebuild and scaled.rebuild
    assert gemma.rebuild.softcap == (3.0, 3.0, 3.0) and gemma.rebuild.scaling == pytest.approx((20**-0.5,) * 3)
    assert gemma.windows == (6, None, 6) and (gemma.rebuild.d_qk, gemma.rebuild.n_key_heads) == (16, 2)
    assert oss.rebuild.sinks and not gemma.rebuild.sinks and oss.offered >= {"attention", "sink_mass"}
    assert scaled.rebuild.scaling == pytest.approx(tuple(8**-0.5 / (layer + 1) for layer in range(3)))


def test_the_learned_sinks_mass_is_rebuilt_too() -> None:
    loaded = tiny("gpt_oss")
    shape = shape_of(loaded)
    found, tapped = emitted(loaded, shape), capture(loaded, tokens(*LENGTHS))
    for layer in range(3):
        for got, want in zip(rebuilt(loaded, shape, found, layer), tapped, strict=True):
            assert error((1 - got.sum(-1)).T, want.sink_mass[layer]) <= 1e-5
            assert want.sink_mass[layer].mean() > 0.01


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss", "gpt_neox", "gpt2"])
def test_half_precision_models_are_rebuilt_to_their_rounding(name: str, dtype: str) -> None:
    loaded = tiny(name, dtype=dtype)
    shape = shape_of(loaded, dtype)
    found, tapped = emitted(loaded, shape), capture(loaded, tokens(*LENGTHS))
    assert found[0, "query"].dtype == getattr(torch, dtype)
    for layer in range(3):
        got = rebuilt(loaded, shape, found, layer)
        differences = torch.cat([(g - t.attention[layer]).abs().flatten() for g, t in zip(got, tapped, strict=True)])
        assert differences.max() < (5e-3 if dtype == "float16" else 4e-2)
        assert differences.mean() < 1e-4


def test_query_and_key_in_16_bits_cost_what_they_may() -> None:
    loaded = tiny("llama")
    shape = shape_of(loaded, "attention=float16")
    found, tapped = emitted(loaded, shape), capture(loaded, tokens(*LENGTHS))
    assert found[0, "key"].dtype == torch.float16 and found[0, "value"].dtype == torch.float32
    worst = max(error(g, t.attention[1]) for g, t in zip(rebuilt(loaded, shape, found, 1), tapped, strict=True))
    assert 1e-5 < worst < 1e-2


def test_what_query_and_key_do_not_explain_stops_the_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads that trade their weights: rows still sum to 1 and see no future, and the output follows them."""
    loaded, eager = tiny("llama"), modeling_llama.eager_attention_forward

    def traded(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any) -> Any:
        output, weights = eager(module, query, key, value, mask, **options)
        if module.layer_idx != 1:
            return output, weights
        weights = weights.flip(1)
        return (weights @ value.repeat_interleave(2, dim=1)).transpose(1, 2), weights

    shape = shape_of(loaded)
    monkeypatch.setattr(modeling_llama, "eager_attention_forward", traded)
    capture(loaded, tokens(*LENGTHS))  # stored, it is what the model computes
    expected = (
        r"attention rebuilt from query and key within 1e-05 of the model's, got a difference of .* on key \d+, "
        r"in model tiny-llama, layer 1, head 0, document 10, row \d+\. Capture with --attention stored"
    )
    with pytest.raises(CaptureCheckError, match=expected):
        emitted(loaded, shape)


def test_only_the_chosen_layers_and_kinds_are_emitted() -> None:
    loaded = tiny("llama")
    found = emitted(loaded, shape_of(loaded, layers="0,2", keep="residual"))
    assert {layer for layer, kind in found if kind == "query"} == {0, 2}
    assert {layer for layer, kind in found if kind == "residual"} == {0, 1, 2, 3}
    assert {kind for _, kind in found} == {"query", "key", "residual"}
    every = emitted(loaded, shape_of(loaded))
    assert all(torch.equal(tensor, every[place]) for place, tensor in found.items())


def test_layers_of_unequal_widths_are_refused() -> None:
    loaded = tiny("llama")
    calls = attention_calls(loaded)
    assert calls == dict.fromkeys(range(3), AttentionCall(4, 2, 8, pytest.approx(8**-0.5), None))
    wider = {**calls, 2: AttentionCall(4, 2, 16, 0.25, None)}
    with pytest.raises(ModelError, match=r"one size in every layer.*\(4, 2, 8\), \(4, 2, 16\), in here.*stored"):
        rebuild_of(loaded.anatomy, wider, "float32", "here")


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"model_type": "bloom"}, "'bloom': ALiBi adds to each score a term for the distance"),
        ({"model_type": "mpt", "attn_config": {"alibi": True}}, "'mpt': ALiBi"),
        ({"model_type": "ega_gpt2"}, "'ega_gpt2': a gate multiplies its weights"),
        ({"model_type": "gpt_neo"}, "'gpt_neo': its attention is computed inside its own module"),
    ],
)
def test_families_that_cannot_be_rebuilt_are_refused_by_name(config: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelError, match=f"rebuilt from query and key, got {reason}.*in here.*--attention stored"):
        require_rebuildable(config, "here")
    assert why_not({"model_type": "llama"}) is None


def test_blocks_of_queries_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(5)
    query, key = (torch.from_numpy(generator.normal(size=(23, h, 4))).float() for h in (6, 2))
    loaded = tiny("mistral-window")
    terms = shape_of(loaded).terms(0, None)
    whole = rebuilt_attention(query, key, terms)
    monkeypatch.setattr("storage.rebuild._BLOCK_ENTRIES", 6 * 23 * 3)
    assert error(rebuilt_attention(query, key, terms), whole) < 1e-6
    assert ((whole > 0).sum(-1).amax(dim=0) == torch.arange(1, 24).clamp(max=5)).all()
