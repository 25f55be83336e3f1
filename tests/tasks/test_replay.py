"""Replay out of a store: the full pass's loss from every layer, by the model that was captured and no other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from storage.errors import ForeignStore, ModelError, UnknownName, UsageError
from tasks.capture import model as loaded
from tasks.models.interventions import ScaleHeads
from tasks.replay import CapturedReplay
from tests.families import tiny_model
from tests.tasks.capture import made_captures
from tests.tasks.capture.made_captures import Made, save_model

TEXT = "The quick brown fox jumps over the lazy dog, and back.\n" * 4


def make(folder: Path, name: str = "llama", **settings: object) -> Made:
    model, text = save_model(folder / "model", name), folder / "text.txt"
    text.write_text(TEXT)
    return made_captures.make(model, [text], folder / "runs", window=29, shard_tokens=80, batch_tokens=60, **settings)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make(tmp_path_factory.mktemp("llama"))


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "falcon-7b", "lfm2", "ega_gpt2-published"])
def test_every_layer_of_the_store_gives_the_stores_loss(name: str, tmp_path: Path) -> None:
    made = make(tmp_path, name)
    replay, store = CapturedReplay.open(made.runs, made.capture, batch_tokens=100), made.store
    shards = {doc: shard for shard in store.shards for doc in store.documents(shard)}
    for layer in range(store.shape.n_layers + 1):
        got = list(replay.run(layer))
        assert [one.document for one in got] == replay.documents == sorted(shards)
        for one in got:
            want = store.shard(shards[one.document]).nll(one.document)
            np.testing.assert_allclose(one.nll, want, atol=1e-5, rtol=1e-5)


def test_documents_are_chosen_and_come_in_the_stores_order(made: Made) -> None:
    replay = CapturedReplay.open(made.runs, made.capture)
    assert len(made.store.shards) > 1
    last = replay.documents[-1]
    got = list(replay.run(1, [(), (ScaleHeads(1, (0,)),)], [last, 0]))
    assert [(one.document, one.condition) for one in got] == [(0, 0), (0, 1), (last, 0), (last, 1)]
    assert not np.array_equal(got[0].nll, got[1].nll, equal_nan=True)


def test_what_the_store_does_not_hold_is_refused(made: Made, tmp_path: Path) -> None:
    replay = CapturedReplay.open(made.runs, made.capture)
    with pytest.raises(UnknownName, match="the name of a document, got '99'"):
        replay.run(0, documents=[0, 99])
    for layer in (-1, 4):
        with pytest.raises(UsageError, match=f"expected a layer from 0 to 3 to replay from, got {layer}"):
            replay.run(layer)
    other = make(tmp_path, layers="1")
    with pytest.raises(UsageError, match="residual"):
        list(CapturedReplay.open(other.runs, other.capture).run(0))
    assert list(CapturedReplay.open(other.runs, other.capture).run(2))


def test_a_model_whose_weights_changed_is_refused(tmp_path: Path) -> None:
    made = make(tmp_path)
    changed = tiny_model("llama")
    with torch.no_grad():
        next(changed.parameters()).add_(1e-3)
    changed.save_pretrained(tmp_path / "model")
    loaded._load.cache_clear()  # which holds the weights that were captured
    with pytest.raises(ForeignStore, match=r"the model that was captured \(digest .*Its files changed since"):
        list(CapturedReplay.open(made.runs, made.capture).run(0))


def test_a_model_named_from_another_folder_is_found_and_never_looked_for_on_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save_model(Path("model"))
    Path("text.txt").write_text(TEXT)
    made = made_captures.make(Path("model"), [tmp_path / "text.txt"], tmp_path / "runs", window=29)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    loaded._load.cache_clear()
    assert list(CapturedReplay.open(made.runs, made.capture).run(2))
    (tmp_path / "model").rename(tmp_path / "moved")
    loaded._load.cache_clear()
    monkeypatch.setattr("tasks.models.sources._from_hub", lambda name: pytest.fail(f"looked for {name} on the hub"))
    with pytest.raises(ModelError, match=r"the model that was captured.*It is gone from there"):
        list(CapturedReplay.open(made.runs, made.capture).run(2))
    loaded._load.cache_clear()
    (tmp_path / "elsewhere" / "model").symlink_to(tmp_path / "moved")
    assert list(CapturedReplay.open(made.runs, made.capture).run(2)), "under the name that was given, in another folder"
