"""The reference models: their settings are the paper's, and interrupted anywhere they end with the same bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

from storage.errors import UsageError
from tasks.training.folder import LOG
from tasks.training.loop import TrainResult, train
from tasks.training.optimiser import Optimiser, rate_factor
from tasks.training.progress import TrainProgress
from tasks.training.settings import TrainSettings
from tasks.training.text import batch_of, held_out_windows, training_text
from tasks.training.variants import computing, new_model

TEXT = ["the cat sat on the mat and the dog ran after the cat. " * 20]
TINY: dict[str, Any] = {
    **{"steps": 9, "batch": 2, "context": 16, "layers": 2, "heads": 2, "width": 16},
    **{"warm_up_steps": 2, "learning_rate": 1e-2},
}


def tiny(variant: str, **changes: Any) -> TrainSettings:
    return TrainSettings.of(variant, **{**TINY, **changes}).check()


def run(out: Path, settings: TrainSettings, progress: Callable[[TrainProgress], None] | None = None) -> TrainResult:
    torch.set_num_threads(1)
    return train(TEXT, str(out), settings, checkpoint_every=4, progress=progress)


def weights(out: Path) -> bytes:
    return (out / "model.safetensors").read_bytes()


class Stop(BaseException):
    """What Ctrl-C raises, but ours."""


def stop_at_six(now: TrainProgress) -> None:
    if now.step == 6:
        raise Stop


def test_the_defaults_are_the_papers() -> None:
    for variant, own in (("base", {}), ("ega", {"gate_statistics": "causal"})):
        described = TrainSettings.of(variant).check().describe()
        described.pop("training_version")
        assert described == {
            **{"variant": variant, "steps": 5000, "batch": 64, "context": 256, "seed": 42},
            **{"layers": 6, "heads": 8, "width": 256, "dropout": 0.1, "held_out": 0.1, "precision": "float32"},
            **{"optimiser": "adamw", "learning_rate": 3e-4, "weight_decay": 0.1, "warm_up_steps": 300},
            **own,
        }
    for steps, rises in ((40, 4), (9, 0), (2999, 299), (3000, 300), (50_000, 300)):
        assert TrainSettings.of("base", steps=steps).check().warm_up_steps == rises
    assert TrainSettings.of("ega", steps=40, warm_up_steps=20).warm_up_steps == 20
    assert TrainSettings.of("sample") == TrainSettings()
    assert "variant" not in TrainSettings().describe()  # what made the sample is said as it always was


@pytest.mark.parametrize(
    ("variant", "given", "message"),
    [
        ("gpt", {}, r"a variant to train, got 'gpt'.*sample, base, ega"),
        ("base", {"gate_statistics": "causal"}, "an option of the variant 'base', got gate_statistics"),
        ("sample", {"dropout": 0.1}, "an option of the variant 'sample', got dropout"),
        ("ega", {"gate_statistics": "future"}, "gate statistics causal or published, got 'future'"),
        ("ega", {"precision": "float16"}, "precision float32 or bfloat16, got 'float16'"),
        ("base", {"optimiser": "sgd"}, "optimiser adamw or muon, got 'sgd'"),
        ("base", {"muon_rate": 0.1}, "an option of the variant 'base', got muon_rate"),
        ("base", {"warm_up_steps": 9}, r"a warm-up of 0 to 8 steps.*got 9.*--warm-up-steps"),
        ("base", {"width": 15}, r"that the heads share evenly, got width 15 over 2 heads.*a multiple of 2\."),
        ("base", {"dropout": 1.0}, r"dropout in \[0, 1\), got 1.0"),
        ("base", {"learning_rate": 0.0}, r"learning_rate above 0 and at most 1, got 0.0"),
        ("ega", {"learning_rate": 1e30}, r"learning_rate above 0 and at most 1, got 1e\+30"),
        ("base", {"learning_rate": float("inf")}, "learning_rate above 0 and at most 1, got inf"),
        ("base", {"weight_decay": -1.0}, "a finite weight decay of at least 0, got -1.0"),
        ("base", {"weight_decay": float("nan")}, "a finite weight decay of at least 0, got nan"),
    ],
)
def test_what_cannot_be_is_refused(variant: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        tiny(variant, **given) if variant in ("base", "ega") else TrainSettings.of(variant, **given).check()


def test_both_begin_from_the_same_weights_and_read_the_same_windows() -> None:
    base, ega = new_model(tiny("base"), 30), new_model(tiny("ega"), 30)
    shared, gated = base.state_dict(), ega.state_dict()
    assert all(torch.equal(tensor, gated[name]) for name, tensor in shared.items())
    assert {name.rpartition(".attn.")[2] for name in gated.keys() - shared.keys()} == {
        *("energy.weight", "energy.bias", "steepness", "threshold")
    }
    text = training_text(TEXT, tiny("base"))
    assert (batch_of(text, tiny("base"), 3) == batch_of(text, tiny("ega"), 3)).all()
    assert base.lm_head.weight is base.transformer.wte.weight


@pytest.mark.parametrize("variant", ["base", "ega"])
def test_interrupted_and_resumed_is_undisturbed(tmp_path: Path, variant: str) -> None:
    settings, whole, resumed = tiny(variant), tmp_path / "whole", tmp_path / "resumed"
    run(whole, settings)
    with pytest.raises(Stop):
        run(resumed, settings, stop_at_six)
    torch.manual_seed(99)  # whatever was drawn before has no part in it
    assert run(resumed, settings).resumed_at == 4
    assert weights(resumed) == weights(whole)
    for other in ({"dropout": 0.0}, {"seed": 1}, {"precision": "bfloat16"}, {"optimiser": "muon"}):
        run(tmp_path / str(other), tiny(variant, **other))
        assert weights(tmp_path / str(other)) != weights(whole)


def test_a_step_draws_its_own_dropout_and_leaves_torch_alone() -> None:
    settings = tiny("base")

    def drawn(step: int) -> torch.Tensor:
        with computing(settings, step):
            return torch.rand(3)

    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    assert torch.equal(drawn(5), drawn(5)) and not torch.equal(drawn(5), drawn(6))
    assert torch.equal(torch.rand(1), expected)


def test_matrices_decay_and_the_rest_does_not() -> None:
    model = new_model(tiny("ega"), 30)
    before = {name: tensor.clone() for name, tensor in model.named_parameters()}
    optimiser = Optimiser(model, tiny("ega"))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimiser.step(8)
    shrinks = 1 - 0.1 * 1e-2 * rate_factor(8, tiny("ega"))
    for name, tensor in model.named_parameters():
        torch.testing.assert_close(tensor, before[name] * (shrinks if tensor.ndim > 1 else 1.0), msg=name)


def test_muon_takes_the_reference_models_hidden_matrices_when_it_is_asked_to() -> None:
    model, settings = new_model(tiny("ega"), 30), tiny("ega", optimiser="muon", muon_rate=0.01)
    optimiser = Optimiser(model, settings)
    model(torch.zeros(1, 4, dtype=torch.long), use_cache=False).logits.sum().backward()
    optimiser.step(0)
    muon = [v.shape for k, v in optimiser.state().items() if k.startswith("muon.")]
    assert len(muon) == 2 * 5  # per layer: query-key-value, attention's output, the two of the MLP, energies
    assert settings.describe()["muon_rate"] == 0.01


def test_the_rate_rises_over_the_steps_of_the_warm_up() -> None:
    settings = TrainSettings.of("base")
    assert rate_factor(0, settings) == 1 / 300
    assert rate_factor(299, settings) == 1.0 > rate_factor(300, settings)
    assert rate_factor(4999, settings) < 1e-5


@pytest.mark.parametrize("variant", ["base", "ega"])
def test_the_folder_is_what_its_log_says(tmp_path: Path, variant: str) -> None:
    settings = tiny(variant, steps=120)
    result = run(tmp_path, settings)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="float32").eval()
    assert model.config.model_type == {"base": "gpt2", "ega": "ega_gpt2"}[variant]
    assert model.config.attn_pdrop == 0.1 and not model.training
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert "lm_head.weight" not in set(file.keys())  # tied, and written once
    assert AutoTokenizer.from_pretrained(tmp_path).decode(AutoTokenizer.from_pretrained(tmp_path)("a cat").input_ids)
    total = count = 0.0
    for window in held_out_windows(training_text(TEXT, settings), settings):
        ids = torch.from_numpy(window)[None]
        with torch.no_grad():
            logits = model(ids[:, :-1]).logits[0]
        total += float(torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum"))
        count += len(window) - 1
    assert total / count == pytest.approx(result.held_out_nats, abs=1e-4)
    log = json.loads((tmp_path / LOG).read_text())
    assert result.held_out_nats < 2.5  # the log of the vocabulary is 4.6
    assert (log["identity"]["variant"], log["losses"][0]["step"]) == (variant, 1)
