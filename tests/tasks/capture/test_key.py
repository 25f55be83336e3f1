"""How documents fall into shards and batches, and what a capture's key depends on."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import UsageError
from tasks.capture.batches import group_by_tokens
from tasks.capture.key import capture_identity, corpus_title, model_title
from tasks.capture.settings import CaptureSettings
from tasks.models.sources import read_config, resolve
from tasks.stages.key import stage_key
from tasks.stages.registry import stage

sizes = st.lists(st.integers(2, 600), min_size=1, max_size=60)


@given(sizes, st.integers(1, 2048), st.booleans())
def test_blocks_are_consecutive_and_keep_the_limit(sizes: list[int], limit: int, padded: bool) -> None:
    groups = group_by_tokens(sizes, limit, padded=padded)
    assert [i for group in groups for i in group] == list(range(len(sizes)))
    for group in groups:
        cost = max(sizes[i] for i in group) * len(group) if padded else sum(sizes[i] for i in group)
        assert cost <= limit or len(group) == 1


@given(sizes, st.integers(1, 2048), st.booleans())
def test_blocks_are_full(sizes: list[int], limit: int, padded: bool) -> None:
    """The next document never still fits into the group before it."""
    groups = group_by_tokens(sizes, limit, padded=padded)
    for group, following in pairwise(groups):
        grown = [*group, following[0]]
        cost = max(sizes[i] for i in grown) * len(grown) if padded else sum(sizes[i] for i in grown)
        assert cost > limit


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (tmp_path / "model" / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    return tmp_path / "model"


def identity(model: Path, corpus_digest: str = "c" * 64, **changes: object) -> str:
    settings = CaptureSettings(str(model), ("text.txt",), **changes)
    source = resolve(str(model))
    return capture_identity(settings, source, read_config(source), corpus_digest, settings.window or 512).key


def test_key_sees_everything_that_can_change_a_number(model: Path) -> None:
    base = identity(model)
    changed = [
        identity(model, "d" * 64),
        identity(model, window=256),
        identity(model, stride=100),
        identity(model, bos="always"),
        identity(model, dtype="bfloat16"),
        identity(model, store_dtype="float16"),
        identity(model, query_block=64),
        identity(model, batch_tokens=512),
        identity(model, shard_tokens=512),
        identity(model, max_documents=3),
    ]
    for name, content in (("model.safetensors", b"other"), ("tokenizer.json", b"{ }"), ("config.json", b"{}")):
        kept = (model / name).read_bytes()
        (model / name).write_bytes(content)
        changed.append(identity(model))
        (model / name).write_bytes(kept)
    assert len({base, *changed}) == len(changed) + 1
    assert identity(model) == base


def test_key_sees_a_revision_of_what_computes_such_models(model: Path) -> None:
    """Only of models that are computed otherwise than before: all others keep their key."""
    settings, source = CaptureSettings(str(model), ("text.txt",)), resolve(str(model))

    def found(rope: dict[str, object]) -> dict[str, object]:
        config = {"model_type": "llama", "rope_parameters": rope}
        return capture_identity(settings, source, config, "c" * 64, 512).ingredients

    assert "revisions" not in found({"rope_type": "yarn", "factor": 4.0})
    assert found({"rope_type": "dynamic", "factor": 4.0})["revisions"] == {"rotary": 2}


def test_key_ignores_the_device_and_where_the_model_lies(model: Path) -> None:
    moved = model.rename(model.parent / "elsewhere")
    assert identity(moved, device="cpu") == identity(moved)


def test_capture_id_names_model_and_corpus(model: Path) -> None:
    settings = CaptureSettings(str(model), ("some/Input Text.txt",))
    found = capture_identity(settings, resolve(str(model)), {}, "c" * 64, 512)
    assert found.capture == f"model-input-text-{found.key[:10]}"
    assert model_title(resolve(str(model) + "/")) == "model"


@pytest.mark.parametrize(
    ("corpus", "title"), [("a/input.txt", "input"), ("texts/*.jsonl.gz", "texts"), ("*.txt", "corpus"), ("a/b/", "b")]
)
def test_corpus_title(corpus: str, title: str) -> None:
    assert corpus_title(CaptureSettings("model", (corpus,))) == title


def test_stage_key_depends_on_parameters_seed_and_capture() -> None:
    declared = stage("contributions")
    four, eight = declared.parameters(edges=4), declared.parameters(edges=8)
    keys = {
        stage_key(declared, four, "a", 0),
        stage_key(declared, eight, "a", 0),
        stage_key(declared, eight, "b", 0),
        stage_key(declared, eight, "a", 1),
        stage_key(replace(declared, version=declared.version + 1), eight, "a", 0),
    }
    assert len(keys) == 5
    assert stage_key(declared, declared.parameters(), "a", 0) in keys


def test_no_documents_at_most_are_all_of_them() -> None:
    assert CaptureSettings("model", ("text",), max_documents=0) == CaptureSettings("model", ("text",))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": "float8"}, "one of float32, float16, bfloat16, got 'float8', in dtype"),
        ({"padding": "both"}, "one of right, left, got 'both', in padding"),
        ({"attention": "packed"}, "one of stored, rebuilt, none, auto, got 'packed', in attention"),
        ({"max_documents": -1}, "a number of documents, or 0 for all, got -1, in max_documents"),
    ],
)
def test_settings_that_cannot_be(change: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        CaptureSettings("model", ("text",), **change)
