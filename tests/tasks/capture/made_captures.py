"""Whole captures of tiny models over made-up text, as `theodolite capture` makes them, without Prefect."""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors

from storage.filesystem import open_runs
from storage.tensors import ActivationStore
from tasks.capture.finish import finish_capture, request_capture
from tasks.capture.plan import prepare_capture
from tasks.capture.run import capture_shards, shards_left
from tasks.capture.settings import CaptureSettings
from tests.families import VOCABULARY, tiny_model

BOS, LETTERS = 0, string.ascii_letters + " \n.,;"
KINDS = ("attention", "value", "output_input", "residual")


def save_model(folder: Path, name: str = "llama", *, bos: bool = True, **changes: Any) -> Path:
    """A tiny model with a tokenizer of characters, which puts `<s>` in front of a text, or has no such token."""
    tiny_model(name, **changes).save_pretrained(folder)
    return save_tokenizer(folder, bos=bos)


def save_tokenizer(folder: Path, *, bos: bool = True) -> Path:
    """A tokenizer of characters: LETTERS behind three special tokens."""
    special = ["<s>", "</s>", "<unk>"] if bos else ["<a>", "<b>", "<unk>"]
    vocabulary = {token: i for i, token in enumerate([*special, *LETTERS])}
    assert len(vocabulary) <= VOCABULARY
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("[\\s\\S]"), "isolated")
    if bos:
        tokenizer.add_special_tokens(["<s>"])
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS)])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **({"bos_token": "<s>"} if bos else {})}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@dataclass(frozen=True)
class Made:
    """A finished capture."""

    runs: str
    capture: str

    @property
    def store(self) -> ActivationStore:
        return ActivationStore.open(open_runs(self.runs), self.capture)

    def tensors(self) -> dict[tuple[int, int, str], torch.Tensor]:
        """(document, layer, kind) → what the store holds; token ids and losses as layer 0."""
        found: dict[tuple[int, int, str], torch.Tensor] = {}
        store = self.store
        for shard in store.shards:
            reader = store.shard(shard)
            for doc in reader.documents:
                found[doc, 0, "token_ids"] = torch.from_numpy(reader.token_ids(doc).copy())
                found[doc, 0, "nll"] = torch.from_numpy(reader.nll(doc).copy())
            for kind in KINDS:
                for layer in range(store.shape.layers(kind)):
                    for document in reader.layer(layer, (kind,)):
                        found[document.doc, layer, kind] = getattr(document, kind)
        return found


def make(model: Path, corpus: Sequence[Path], runs: Path, **settings: Any) -> Made:
    """Capture these texts, every shard and the tables."""
    torch.set_num_threads(1)
    capture = prepare_capture(CaptureSettings(str(model), tuple(map(str, corpus)), **settings), str(runs))
    request_capture(str(runs), capture)
    capture_shards(str(runs), capture, shards_left(str(runs), capture))
    finish_capture(str(runs), capture)
    return Made(str(runs), capture)


def capturing(base: CaptureSettings, runs: str) -> Callable[..., tuple[str, str]]:
    """Captures with changes of these settings, each once: gives the folder of runs and the capture's id."""
    known: dict[str, str] = {}

    def capture(**changes: Any) -> tuple[str, str]:
        name = repr(sorted(changes.items()))
        if name not in known:
            known[name] = prepare_capture(base.changed(**changes), runs)
            request_capture(runs, known[name])
            capture_shards(runs, known[name], shards_left(runs, known[name]))
            finish_capture(runs, known[name])
        return runs, known[name]

    return capture
