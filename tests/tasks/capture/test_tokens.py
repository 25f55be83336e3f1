"""A capture's documents are the tokens that transformers makes of the text, whichever files of the model say so."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from storage.errors import UsageError
from tasks.capture.plan import plan_capture, prepare_capture
from tasks.capture.settings import CaptureSettings
from tests.tasks.capture.made_captures import make, save_model

ROOT = Path(__file__).resolve().parents[3]
TEXT = "a b<x>c"
FILES = pytest.mark.parametrize(
    ("file", "content"),
    [
        ("special_tokens_map.json", {"bos_token": "<s>"}),
        ("tokenizer_config.json", {}),
        ("added_tokens.json", {"<x>": 60}),
        ("tokenizer_config.json", {"extra_special_tokens": {"x_token": "<x>"}}),
    ],
)


def saved(folder: Path, file: str, content: dict[str, Any]) -> Path:
    """A tiny model whose tokenizer puts `<s>` in front without naming it in tokenizer_config.json."""
    save_model(folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    there = json.loads((folder / file).read_text()) if (folder / file).is_file() else {}
    (folder / file).write_text(json.dumps({**there, **content}))
    (folder.parent / "text.txt").write_text(TEXT)
    return folder


@FILES
def test_ids_and_losses_are_those_of_plain_transformers(file: str, content: dict[str, Any], tmp_path: Path) -> None:
    model = saved(tmp_path / "m", file, content)
    made = make(model, [tmp_path / "text.txt"], tmp_path / "runs", device="cpu")
    shard = made.store.shard(0)
    ids = transformers.AutoTokenizer.from_pretrained(model)(TEXT).input_ids
    assert shard.token_ids(0).tolist() == ids and ids[0] == 0
    plain = transformers.AutoModelForCausalLM.from_pretrained(model).double()
    with torch.no_grad():
        scores = torch.log_softmax(plain(torch.tensor([ids])).logits[0], -1)
    losses = -scores[:-1].gather(1, torch.tensor(ids)[1:, None])
    np.testing.assert_allclose(shard.nll(0)[1:], losses[:, 0].numpy(), rtol=1e-5)


@FILES
def test_a_plan_counts_the_same_tokens(file: str, content: dict[str, Any], tmp_path: Path) -> None:
    model = saved(tmp_path / "m", file, content)
    settings = CaptureSettings(str(model), (str(tmp_path / "text.txt"),), device="cpu")
    ids = transformers.AutoTokenizer.from_pretrained(model)(TEXT).input_ids
    assert plan_capture(settings, str(tmp_path / "runs")).n_tokens == len(ids)


def test_what_is_prepared_already_is_found_without_transformers(tmp_path: Path) -> None:
    model = save_model(tmp_path / "m")
    (tmp_path / "text.txt").write_text(TEXT)
    settings = (str(model), (str(tmp_path / "text.txt"),))
    known = prepare_capture(CaptureSettings(*settings, device="cpu"), str(tmp_path / "runs"))
    program = (
        "import sys; from tasks.capture.plan import prepare_capture\n"
        "from tasks.capture.settings import CaptureSettings\n"
        f"print(prepare_capture(CaptureSettings(*{settings!r}, device='cpu'), {str(tmp_path / 'runs')!r}))\n"
        "print({'torch', 'transformers'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == [known, "set()"]


def test_a_tokenizer_that_puts_two_tokens_in_front_is_refused_unless_it_is_told(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, processors

    model = save_model(tmp_path / "m")
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    both = [("<s>", 0), ("</s>", 1)]
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> </s> $A", special_tokens=both)
    tokenizer.save(str(model / "tokenizer.json"))
    (tmp_path / "text.txt").write_text(TEXT)
    with pytest.raises(UsageError, match=r"one token in front.*2 there \(ids 0, 1\).*--bos never, or --bos alw"):
        make(model, [tmp_path / "text.txt"], tmp_path / "runs", device="cpu")
    made = make(model, [tmp_path / "text.txt"], tmp_path / "runs", device="cpu", bos="always")
    assert made.store.shard(0).token_ids(0)[:2].tolist() == [0, 3]
