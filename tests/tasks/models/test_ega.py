"""GPT-2 with energy gates: the formula, what each kind of statistics knows of the future, and how it is loaded."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache, GPT2Config, GPT2LMHeadModel

from storage.errors import ModelError
from tasks.models.ega import EgaConfig, EgaLMHeadModel
from tasks.models.ega_statistics import energy_statistics
from tasks.models.loading import load_model
from tasks.models.sources import resolve
from tests.configurations import COMMON
from tests.families import tiny_model, tokens
from tests.oracles.energy_gates import gated_attention

BOTH = ["causal", "published"]
NAMES = {"causal": "ega_gpt2", "published": "ega_gpt2-published"}


def model_of(statistics: str) -> Any:
    return tiny_model(NAMES[statistics], dtype=torch.float64)


def ids_of(length: int) -> Tensor:
    return torch.from_numpy(tokens(length)[0].astype(np.int64))[None]


def attention_of(model: Any, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Logits (T, V) and attention (L, H, T, T)."""
    with torch.no_grad():
        found = model(input_ids=ids, use_cache=False, output_attentions=True)
    return found.logits[0], torch.cat(found.attentions)


@pytest.mark.parametrize("statistics", BOTH)
def test_weights_are_softmax_times_gate_renormalised(statistics: str) -> None:
    model, ids = model_of(statistics), ids_of(17)
    inputs: dict[int, Tensor] = {}
    for layer, block in enumerate(model.transformer.h):
        block.ln_1.register_forward_hook(lambda _m, _a, out, layer=layer: inputs.update({layer: out[0]}))
    _, alpha = attention_of(model, ids)
    for layer, block in enumerate(model.transformer.h):
        x, attn = inputs[layer], block.attn
        with torch.no_grad():
            projected = attn.c_attn(x)
        query, key, _ = (part.unflatten(-1, (4, 8)).transpose(0, 1) for part in projected.chunk(3, dim=-1))
        scores = (query @ key.transpose(-1, -2) / 8**0.5).detach().numpy()
        energy = (x @ attn.energy.weight.T + attn.energy.bias).detach().numpy()  # (T, H)
        for head in range(4):
            a, tau = attn.steepness[head].item(), attn.threshold[head].item()
            want = gated_attention(scores[head], energy[:, head], a, tau, statistics)
            np.testing.assert_allclose(alpha[layer, head].numpy(), want, atol=1e-10)
            gateless = gated_attention(scores[head], energy[:, head], 0.0, tau, statistics)
            assert np.abs(alpha[layer, head].numpy() - gateless).max() > 0.01


def test_causal_gates_see_nothing_of_the_future_and_published_ones_do() -> None:
    ids = ids_of(24)
    other = ids.clone()
    other[:, 10:] = (other[:, 10:] + 7) % 61
    seen: dict[str, float] = {}
    for statistics in BOTH:
        model = tiny_model(NAMES[statistics])
        (logits, alpha), (changed, moved) = attention_of(model, ids), attention_of(model, other)
        seen[statistics] = (logits[:10] - changed[:10]).abs().max().item()
        assert (alpha.triu(1) == 0).all()
        assert not torch.equal(logits[10:], changed[10:])
        assert torch.equal(alpha[:, :, :10, :10], moved[:, :, :10, :10]) is (statistics == "causal")
    assert seen["causal"] == 0.0
    assert seen["published"] > 0.01


def test_a_gate_without_steepness_is_gpt_2() -> None:
    model, plain = model_of("causal"), GPT2LMHeadModel(GPT2Config(**COMMON)).double().eval()
    plain.set_attn_implementation("eager")
    missing = plain.load_state_dict(model.state_dict(), strict=False).missing_keys
    assert missing == []
    gated, _ = attention_of(model, ids_of(15))
    for block in model.transformer.h:
        block.attn.steepness.data.zero_()
    (logits, alpha), (want, attention) = attention_of(model, ids_of(15)), attention_of(plain, ids_of(15))
    torch.testing.assert_close(logits, want, atol=1e-12, rtol=0)
    torch.testing.assert_close(alpha, attention, atol=1e-12, rtol=0)
    assert (gated - want).abs().max() > 0.01


@pytest.mark.parametrize("statistics", BOTH)
def test_energies_are_normalised_so_their_offset_says_nothing(statistics: str) -> None:
    energy = torch.randn(2, 3, 40, generator=torch.Generator().manual_seed(1))
    mean, inverse = energy_statistics(energy, None, statistics)
    z = (energy - mean) * inverse
    for offset, allowed in ((1.0, 1e-5), (1000.0, 5e-3)):  # a difference of squares would have lost all at 1,000
        mean, inverse = energy_statistics(energy + offset, None, statistics)
        assert ((energy + offset - mean) * inverse - z).abs().max() < allowed
    want = (energy[..., -1:] - energy.mean(-1, keepdim=True)) / energy.std(-1, correction=0, keepdim=True)
    torch.testing.assert_close(z[..., -1:], want, atol=1e-4, rtol=0)


def test_one_position_and_equal_energies_have_no_deviation() -> None:
    mean, inverse = energy_statistics(torch.full((1, 2, 5), 0.25), None, "causal")
    assert torch.equal(mean, torch.full((1, 2, 5), 0.25))
    torch.testing.assert_close(inverse, torch.full((1, 2, 5), 1e-5**-0.5))


def test_padding_enters_no_statistics() -> None:
    energy = torch.randn(1, 2, 9, generator=torch.Generator().manual_seed(2))
    padded = torch.cat([torch.full((1, 2, 4), 9.0), energy], dim=-1)
    seen = torch.tensor([[[False] * 4 + [True] * 9]])
    for statistics in BOTH:
        alone, behind = energy_statistics(energy, None, statistics), energy_statistics(padded, seen, statistics)
        for a, b in zip(alone, behind, strict=True):
            torch.testing.assert_close(a, b[..., 4:], atol=1e-6, rtol=1e-5)


def with_cache(model: Any, ids: Tensor, cache: Any) -> Any:
    name = "cache" if "cache" in inspect.signature(type(model).forward).parameters else "past_key_values"
    with torch.inference_mode():
        return model(input_ids=ids, **{name: cache}, use_cache=True).logits[0]


def test_a_cache_gives_what_the_whole_window_gives() -> None:
    model, ids = model_of("causal"), ids_of(20)
    whole, _ = attention_of(model, ids)
    cache = DynamicCache()
    parts = [with_cache(model, part, cache) for part in ids.split([12, 1, 7], dim=1)]
    torch.testing.assert_close(torch.cat(parts), whole, atol=1e-6, rtol=0)
    with pytest.raises(ValueError, match="see the whole window: call the model with use_cache=False"):
        with_cache(model_of("published"), ids, DynamicCache())


def test_other_statistics_and_other_attention_functions_are_refused() -> None:
    with pytest.raises(ValueError, match=r"must be one of \('causal', 'published'\), got 'future'"):
        EgaLMHeadModel(EgaConfig(**COMMON, gate_statistics="future"))
    with pytest.raises(ValueError, match="scaled_dot_product_attention"):
        model_of("causal").set_attn_implementation("sdpa")


def test_a_saved_folder_is_loaded_by_transformers_and_by_the_loader(tmp_path: Path) -> None:
    model = tiny_model("ega_gpt2-published")
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert isinstance(loaded, EgaLMHeadModel) and loaded.config.gate_statistics == "published"
    assert loaded.config._attn_implementation == "eager"
    ids = ids_of(11)
    assert torch.equal(attention_of(loaded.eval(), ids)[0], attention_of(model, ids)[0])
    tapped = load_model(resolve(str(tmp_path)), device="cpu")
    assert (tapped.anatomy.family, tapped.tap_method) == ("ega_gpt2", "interface")
    with torch.inference_mode():
        torch.testing.assert_close(tapped.model(ids).logits[0], attention_of(model, ids)[0], atol=1e-5, rtol=0)
    weights = load_file(tmp_path / "model.safetensors")
    ungated = {name: tensor for name, tensor in weights.items() if "energy" not in name}
    save_file(ungated, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"weights for every part of the model, got 6 missing.*attn\.energy\.bias"):
        load_model(resolve(str(tmp_path)), device="cpu")


def test_a_new_model_begins_with_open_gates_of_steepness_two() -> None:
    attention: Any = EgaLMHeadModel(EgaConfig(**COMMON)).transformer.h[0].attn
    assert attention.steepness.tolist() == [2.0] * 4
    assert attention.threshold.tolist() == [0.0] * 4
    assert attention.energy.weight.shape == (4, 32)
    assert attention.energy.weight.std() > 0.01
