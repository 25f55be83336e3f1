"""Rows of the stage `head_ablation` against the plain float64 model with the head's whole output taken away."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from storage.errors import UsageError
from tasks.capture.folder import CaptureFolder
from tasks.capture.model import captured_model
from tasks.stages.run import prepare_stage, stage_parts_left
from tests.oracles.masking import PlainModel
from tests.tasks.stages.running import TEXT, Ran, captured, documents_of, interrupted, run


def assert_rows(ran: Ran, layers: tuple[int, ...]) -> None:
    """A row for every document, and every head of these layers, each as the plain model without it."""
    plain = PlainModel(captured_model(CaptureFolder.open(ran.made.runs, ran.made.capture)))
    n_heads, by_doc = ran.made.store.shape.n_heads, documents_of(ran.made)
    rows = {(row["doc"], row["layer"], row["head"]): row for row in ran.rows("head_ablation")}
    assert set(rows) == {(d, at, h) for d in by_doc for at in layers for h in range(n_heads)} and len(by_doc) > 1
    changes = []
    for (doc, layer, head), row in rows.items():
        ids, nll = by_doc[doc]
        gone = torch.zeros(n_heads, len(ids), len(ids), dtype=torch.bool)
        gone[head] = True
        assert row["nll_sum"] == pytest.approx(float(plain.losses(ids, {layer: gone}).sum()), rel=1e-5)
        assert row["nll_clean_sum"] == pytest.approx(float(nll[1:].sum(dtype="float64")), rel=1e-12)
        assert row["n_predicted"] == len(ids) - 1
        changes.append(abs(row["nll_sum"] - row["nll_clean_sum"]))
    assert min(changes) > 1e-5 and len({round(change, 5) for change in changes}) > len(changes) // 2


@pytest.mark.parametrize("name", ["llama", "gpt_neox", "bloom"])
def test_every_head_alone(name: str, tmp_path: Path) -> None:
    ran = run(captured(tmp_path, name), "head_ablation")
    assert_rows(ran, (0, 1, 2))
    assert ran.record()["quality"] == {} and ran.record()["status"] == "done"


def test_heads_of_chosen_layers_and_without_attention_in_the_store(tmp_path: Path) -> None:
    """A replay needs the residual stream, and computes the rest."""
    assert_rows(run(captured(tmp_path, attention="none", keep="residual", layers="1-2"), "head_ablation"), (1, 2))


@pytest.mark.parametrize(("name", "layers"), [("lfm2", (1,)), ("qwen3_next", (1, 2))])
def test_layers_without_attention_are_left_out(name: str, layers: tuple[int, ...], tmp_path: Path) -> None:
    assert_rows(run(captured(tmp_path, name), "head_ablation"), layers)


def test_a_store_without_the_residual_stream_is_refused(tmp_path: Path) -> None:
    made = captured(tmp_path, keep="value")
    with pytest.raises(UsageError, match=r"a store with residual, got one without residual.*--keep with residual"):
        prepare_stage(made.runs, made.capture, "head_ablation", {})


def test_an_interrupted_run_goes_on_and_ends_with_the_same_bytes(tmp_path: Path) -> None:
    settings = {"shard_tokens": 26, "batch_tokens": 13}
    whole = run(captured(tmp_path / "whole", **settings), "head_ablation")
    made = captured(tmp_path / "broken", **settings)
    came = interrupted(made, "head_ablation", whole.key, steps=9)
    assert 0 < came < len(TEXT) and stage_parts_left(made.runs, made.capture, "head_ablation", whole.key)
    assert run(made, "head_ablation").bytes("head_ablation") == whole.bytes("head_ablation")
