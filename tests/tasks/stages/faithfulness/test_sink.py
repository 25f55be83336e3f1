"""Rows of the stage `sink` against the plain model with the values of position 0 zeroed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from storage.errors import UsageError
from tasks.capture.folder import CaptureFolder
from tasks.capture.model import captured_model
from tasks.models.anatomy import values_in
from tasks.models.loading import LoadedModel
from tasks.stages.run import prepare_stage
from tests.tasks.stages.running import TEXT, Ran, captured, documents_of, run


def without_sink(loaded: LoadedModel, ids: np.ndarray, layers: Sequence[int]) -> float:
    """Losses in nats, summed, of the plain model whose value projections give nothing at position 0."""
    model, anatomy = loaded.model, loaded.anatomy
    hooks, tapped = [], model.config._attn_implementation

    def zeroed(_module: Any, _args: Any, output: torch.Tensor) -> torch.Tensor:
        changed = output.clone()
        channels = values_in(anatomy, torch.arange(output.shape[-1]))
        changed[:, 0, channels.flatten()] = 0
        return changed

    model.set_attn_implementation("eager")
    try:
        hooks = [anatomy.value_projections[layer].register_forward_hook(zeroed) for layer in layers]
        batch = torch.from_numpy(ids.astype(np.int64))[None]
        with torch.inference_mode():
            logits = model(input_ids=batch, use_cache=False).logits[0]
    finally:
        model.set_attn_implementation(tapped)
        for hook in hooks:
            hook.remove()
    return float(torch.nn.functional.cross_entropy(logits[:-1].double(), batch[0, 1:], reduction="sum"))


def assert_rows(ran: Ran, sets: dict[str, tuple[int, ...]]) -> None:
    """Rows of exactly these labels, each with these layers' sink values zeroed."""
    loaded = captured_model(CaptureFolder.open(ran.made.runs, ran.made.capture))
    by_doc = documents_of(ran.made)
    rows = {(row["doc"], row["layers"]): row for row in ran.rows("sink_removal")}
    assert set(rows) == {(doc, label) for doc in by_doc for label in sets} and len(by_doc) > 1
    for (doc, label), row in rows.items():
        ids, nll = by_doc[doc]
        assert row["nll_sum"] == pytest.approx(without_sink(loaded, ids, sets[label]), rel=1e-5)
        assert row["nll_clean_sum"] == pytest.approx(nll[1:].sum(dtype=np.float64), rel=1e-12)
        assert row["nll_clean_sum"] == pytest.approx(without_sink(loaded, ids, ()), rel=1e-5)
        assert row["n_predicted"] == len(ids) - 1
        assert abs(row["nll_sum"] - row["nll_clean_sum"]) > 1e-3


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_neox", "gemma2", "falcon-7b", "bloom"])
def test_each_layer_alone_and_all_at_once(name: str, tmp_path: Path) -> None:
    ran = run(captured(tmp_path, name), "sink")
    assert_rows(ran, {"0": (0,), "1": (1,), "2": (2,), "all": (0, 1, 2)})
    assert ran.record()["quality"] == {} and ran.record()["status"] == "done"


def test_of_chosen_layers_all_of_them_are_named(tmp_path: Path) -> None:
    """Layers 1 and 2 together are not all that the model has."""
    assert_rows(run(captured(tmp_path, layers="1-2"), "sink"), {"1": (1,), "2": (2,), "1-2": (1, 2)})


def test_one_chosen_layer_has_one_row(tmp_path: Path) -> None:
    assert_rows(run(captured(tmp_path, layers="1"), "sink"), {"1": (1,)})


@pytest.mark.parametrize(
    ("name", "sets"),
    [("lfm2", {"all": (1,)}), ("qwen3_next", {"1": (1,), "2": (2,), "all": (1, 2)})],
)
def test_layers_without_attention_are_left_out(name: str, sets: dict[str, tuple[int, ...]], tmp_path: Path) -> None:
    assert_rows(run(captured(tmp_path, name), "sink"), sets)


def test_attention_need_not_be_there(tmp_path: Path) -> None:
    """A replay needs the residual stream, and computes the rest."""
    assert_rows(run(captured(tmp_path, attention="none", keep="residual", layers="1"), "sink"), {"1": (1,)})


def test_a_store_without_the_residual_stream_is_refused(tmp_path: Path) -> None:
    made = captured(tmp_path, keep="value")
    told = "a store with residual, got one without residual.*Capture again.*--keep with residual"
    with pytest.raises(UsageError, match=told):
        prepare_stage(made.runs, made.capture, "sink", {})


def test_shards_and_batches_change_nothing(tmp_path: Path) -> None:
    """A document's loss is the same in a shard of its own; documents of one length, so that padding is too."""
    text = TEXT[:24]
    whole, apart = (captured(tmp_path, text=text, shard_tokens=tokens, batch_tokens=tokens) for tokens in (26, 13))
    assert len(whole.store.shards) < len(apart.store.shards)
    left, right = (run(made, "sink").rows("sink_removal") for made in (whole, apart))
    by_key = {(row["doc"], row["layers"]): row["nll_sum"] for row in right}
    for row in left:
        assert row["nll_sum"] == pytest.approx(by_key[row["doc"], row["layers"]], rel=1e-6)
