"""Verify against the plain model: right stores pass for every family and dtype, wrong ones are named."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from storage.errors import ForeignStore
from storage.store_reader import ShardReader
from tasks.capture.plan import prepare_capture
from tasks.capture.settings import CaptureSettings
from tasks.capture.verify_sample import COMPUTED, MOST_BYTES, STORED, rerun_sample
from tests.tasks.capture import made_captures
from tests.tasks.capture.made_captures import Made, save_model

TEXT = "The quick brown fox jumps over the lazy dog, and back.\n" * 4


def make(folder: Path, name: str = "llama", **settings: object) -> Made:
    model, text = save_model(folder / "model", name), folder / "text.txt"
    text.write_text(TEXT)
    return made_captures.make(model, [text], folder / "runs", window=29, shard_tokens=80, batch_tokens=60, **settings)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    make(folder)
    return folder


@pytest.fixture
def made(whole: Path) -> Made:
    (capture,) = [p.name for p in (whole / "runs").iterdir() if p.is_dir()]
    return Made(str(whole / "runs"), capture)


@pytest.mark.parametrize(
    "name", ["llama", "gpt2", "gpt_neox", "gemma2", "gemma3n_text", "mistral-window", "gpt_oss", "phi", "ega_gpt2"]
)
def test_a_right_store_passes(name: str, tmp_path: Path) -> None:
    made = make(tmp_path, name)
    rerun = rerun_sample(made.runs, made.capture, 3, seed=1)
    assert (rerun.problems, rerun.note, len(rerun.documents)) == ([], "", 3)
    *layers, last = rerun.layers
    for errors in layers:
        assert all(e is not None and e < 1e-5 for e in (errors.attention, errors.output_input, errors.residual))
    assert last.attention is None and last.residual < 1e-5 and last.nll < 1e-5


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("computed", ["float32", "the same"])
def test_half_precision_passes_within_its_own_tolerance(computed: str, dtype: str, tmp_path: Path) -> None:
    made = make(tmp_path, dtype=dtype if computed == "the same" else computed, store_dtype=dtype)
    rerun = rerun_sample(made.runs, made.capture, 2, seed=0)
    worst = max(e for errors in rerun.layers for e in (errors.attention, errors.residual, errors.nll) if e is not None)
    assert rerun.problems == []
    assert worst < max(STORED[dtype], COMPUTED["float32" if computed == "float32" else dtype]) / 2
    if computed == "float32":
        assert worst > STORED["float32"]  # rounding alone is more than float32 may be off


def test_the_sample_is_the_seeds(made: Made) -> None:
    samples = [rerun_sample(made.runs, made.capture, 2, seed).documents for seed in (0, 0, 1, 2, 3)]
    assert samples[0] == samples[1]
    assert len(set(map(tuple, samples))) > 1
    everything = rerun_sample(made.runs, made.capture, 100, seed=0).documents
    assert everything == [doc for shard in made.store.shards for doc in made.store.documents(shard)]


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        ("attention", "head 1, query 5, key 2"),
        ("output_input", "position 5, head 2, dimension 1"),
        ("residual", "position 5, dimension 2"),
    ],
)
def test_a_wrong_number_is_named(kind: str, place: str, made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """One entry of one layer off by a little more than is allowed."""
    read = ShardReader.layer
    entry = {"attention": (1, 5, 2), "output_input": (5, 2, 1), "residual": (5, 2)}[kind]

    def wrong(self: ShardReader, layer: int, kinds: tuple[str, ...]) -> object:
        for document in read(self, layer, kinds):
            tensor = getattr(document, kind)
            if tensor is not None and layer == 1 and document.doc == 0:
                tensor = tensor.clone()
                tensor[entry] += 2 * STORED["float32"] * max(1.0, float(tensor.abs().max()))
                setattr(document, kind, tensor)
            yield document

    monkeypatch.setattr(ShardReader, "layer", wrong)
    rerun = rerun_sample(made.runs, made.capture, 100, seed=0)
    (problem,) = rerun.problems
    assert problem.startswith(f"{kind} of layer 1, document 0, {place}: ")
    assert "by the plain model: an error of 0.0002, 0.0001 is allowed" in problem
    assert getattr(rerun.layers[1], kind) > STORED["float32"]


def test_a_wrong_loss_and_one_that_is_no_number_are_named(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    read = ShardReader.nll

    def wrong(self: ShardReader, doc: int) -> np.ndarray:
        values = read(self, doc).copy()
        values[[4, 7][doc % 2]] = [np.nan, values[7] + 1][doc % 2]
        return values

    monkeypatch.setattr(ShardReader, "nll", wrong)
    problems = rerun_sample(made.runs, made.capture, 2, seed=0).problems
    assert len(problems) == 2
    for problem, doc in zip(problems, rerun_sample(made.runs, made.capture, 2, seed=0).documents, strict=True):
        assert problem.startswith(f"nll of layer 3, document {doc}, position {[4, 7][doc % 2]}: ")


def test_another_model_of_the_same_shape_is_seen(made: Made, whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: the comparison is with what this model computes, not with whatever a model does."""
    from tasks.models import plain

    load = plain.load_plain

    def another(*arguments: object) -> object:
        loaded = load(*arguments)
        with torch.no_grad():
            next(loaded.model.parameters()).mul_(1.01)
        return loaded

    monkeypatch.setattr(plain, "load_plain", another)
    assert len(rerun_sample(made.runs, made.capture, 1, seed=0).problems) > 3


def test_a_model_that_is_gone_is_noted_and_one_that_changed_is_refused(made: Made, whole: Path, tmp_path: Path) -> None:
    kept = shutil.move(whole / "model", tmp_path / "kept")
    try:
        rerun = rerun_sample(made.runs, made.capture, 2, seed=0)
        assert rerun.note.startswith("nothing is run again, the model is not there any more: expected the model")
        assert (rerun.documents, rerun.layers, rerun.problems) == ([], [], [])
        shutil.copytree(kept, whole / "model")
        config = whole / "model" / "config.json"
        config.write_text(config.read_text() + " ")
        with pytest.raises(ForeignStore, match=r"the model that was captured .*got one of digest .*--documents 0"):
            rerun_sample(made.runs, made.capture, 2, seed=0)
        shutil.rmtree(whole / "model")
    finally:
        shutil.move(kept, whole / "model")


def test_what_is_not_captured_or_too_long_is_noted(
    made: Made, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = CaptureSettings(str(whole / "model"), (str(whole / "text.txt"),), window=20)
    capture = prepare_capture(settings, str(tmp_path))
    assert rerun_sample(str(tmp_path), capture, 2, seed=0).note == "nothing is run again: no shard is captured yet"
    assert MOST_BYTES > 1e9
    monkeypatch.setattr("tasks.capture.verify_sample.MOST_BYTES", 4 * 3 * 4 * 28**2)
    rerun = rerun_sample(made.runs, made.capture, 100, seed=0)
    assert all(made.store.shard(0).lengths[0] > 28 for _ in rerun.documents) and len(rerun.documents) == 1
    monkeypatch.setattr("tasks.capture.verify_sample.MOST_BYTES", 48)
    assert "every document is longer than 1 tokens" in rerun_sample(made.runs, made.capture, 2, seed=0).note


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("chosen", [{}, {"heads": "1,3", "positions": "every:3,last"}])
def test_attention_rebuilt_from_rounded_queries_and_keys_may_be_off_by_their_rounding(
    dtype: str, chosen: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make(tmp_path, attention="rebuilt", store_dtype=f"attention={dtype}", **chosen)
    rerun = rerun_sample(made.runs, made.capture, 2, seed=0)
    assert rerun.problems == []
    assert max(errors.attention or 0.0 for errors in rerun.layers) > STORED["float32"]
    read = ShardReader.layer

    def traded(self: ShardReader, layer: int, kinds: tuple[str, ...]) -> object:
        for document in read(self, layer, kinds):
            if "attention" in kinds and layer == 1:
                document.attention = document.attention.flip(0)
            yield document

    monkeypatch.setattr(ShardReader, "layer", traded)
    assert any(p.startswith("attention of layer 1") for p in rerun_sample(made.runs, made.capture, 2, seed=0).problems)
