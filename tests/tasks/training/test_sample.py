"""The model that ships: small, loads without a warning, and is what its log says."""

from __future__ import annotations

import json
import logging
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tasks.corpora.topics import python_topics
from tasks.training.export import config_file, tokenizer_files
from tasks.training.settings import TrainSettings
from tasks.training.text import SPECIAL, held_out_windows, training_text
from tasks.training.variants import new_model

FOLDER = Path(str(files("samples"))) / "topics-neox"


@pytest.fixture(scope="module")
def log() -> dict[str, Any]:
    return json.loads((FOLDER / "training_log.json").read_text())


@pytest.fixture(scope="module")
def vocabulary() -> list[str]:
    numbers = json.loads((FOLDER / "tokenizer.json").read_text())["model"]["vocab"]
    return sorted(numbers, key=numbers.__getitem__)


def test_it_is_small_and_made_with_the_defaults(log: dict[str, Any]) -> None:
    assert (FOLDER / "model.safetensors").stat().st_size < 3_000_000
    identity = dict(log["identity"])
    identity.pop("text_digest")
    assert identity == TrainSettings().describe()


def test_it_loads_without_a_warning(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    with caplog.at_level(logging.INFO):
        model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype="float32")
        tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    said = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert said == []
    assert (model.config.bos_token_id, tokenizer.bos_token_id, tokenizer.pad_token_id) == (1, 1, 1)
    assert len(tokenizer) == model.config.vocab_size


def test_its_files_are_what_the_training_writes(vocabulary: list[str]) -> None:
    expected = tokenizer_files(vocabulary, TrainSettings().context)
    expected["config.json"] = config_file(new_model(TrainSettings(), len(vocabulary)))
    for name, content in expected.items():
        found = json.loads((FOLDER / name).read_text())
        found.pop("transformers_version", None)
        content.pop("transformers_version", None)
        assert found == content


def test_one_token_a_character_and_nothing_added(vocabulary: list[str]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    text = "def f(x):\n\treturn  'ß' – x\n"
    ids = tokenizer(text)["input_ids"]
    assert [vocabulary[i] for i in ids] == list(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer("日")["input_ids"] == [SPECIAL.index("<unk>")]


def test_the_held_out_loss_is_what_the_log_says(log: dict[str, Any], vocabulary: list[str]) -> None:
    settings = TrainSettings()
    text = training_text([t for _, t in python_topics()], settings)
    if text.digest != log["identity"]["text_digest"]:
        pytest.skip("this Python carries another text than the one the sample was trained on")
    assert text.vocabulary == vocabulary
    model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype="float32")
    total = count = 0.0
    for window in held_out_windows(text, settings):
        ids = torch.from_numpy(window)[None]
        with torch.no_grad():
            logits = model(ids[:, :-1]).logits[0]
        total += float(torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum"))
        count += len(window) - 1
    assert count == log["text"]["characters_held_out"] - 1
    assert total / count == pytest.approx(log["result"]["held_out_nats"], abs=2e-4)
