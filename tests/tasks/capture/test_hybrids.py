"""Captures of models in which some layers have no attention, and of those that gate their heads, from text to table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch.testing import assert_close

from flows.checks import check_tables, require
from storage.errors import UsageError
from storage.filesystem import open_runs
from tasks.capture.describe import describe
from tasks.capture.plan import plan_capture, prepare_capture
from tasks.capture.settings import CaptureSettings
from tasks.capture.verify_sample import rerun_sample
from tasks.stages.run import finish_stage, prepare_stage, run_stage_shards, stage_parts_left
from tests.tasks.capture.made_captures import Made, make, save_model

TEXT = "The quick brown fox jumps over the lazy dog, and back.\n" * 4
ATTENDED = {"qwen3_next": (1, 2), "lfm2": (1,)}


@pytest.fixture(scope="module", params=[(name, way) for name in ATTENDED for way in ("stored", "rebuilt")])
def captured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, Path, Made]:
    name, way = request.param
    folder = tmp_path_factory.mktemp(name)
    model, text = save_model(folder / "model", name), folder / "text.txt"
    text.write_text(TEXT)
    made = make(model, [text], folder / "runs", window=29, shard_tokens=80, batch_tokens=60, attention=way)
    return name, way, folder, made


def test_only_layers_with_attention_have_heads(captured: tuple[str, str, Path, Made]) -> None:
    name, _, folder, made = captured
    there, store = ATTENDED[name], made.store
    assert store.shape.kept_layers == store.shape.attention_layers == there
    assert store.shape.layer_numbers("residual") == (0, 1, 2, 3) and store.shape.layer_numbers("value") == there
    heads = pq.read_table(folder / "runs" / made.capture / "tables" / "heads")
    assert sorted(zip(*(heads[c].to_pylist() for c in ("layer", "head")), strict=True)) == [
        (layer, head) for layer in there for head in range(4)
    ]
    reader = store.shard(0)
    assert next(d.attention.shape[0] for d in reader.layer(there[-1])) == 4
    for refused in (lambda: store.weights(0), lambda: store.value_norm(0), lambda: reader.layer(0, ("value",))):
        with pytest.raises(UsageError, match=r"\(1(–2)?\), got 0"):
            refused()
    assert next(iter(reader.layer(0, ("residual",)))).residual is not None


def test_the_gate_is_what_the_output_projection_is_given_over_what_attention_gives(
    captured: tuple[str, str, Path, Made],
) -> None:
    name, _, _, made = captured
    store = made.store
    assert store.shape.gated is ("gate" in store.shape.offered) is (name == "qwen3_next")
    kinds = ("attention", "value", "output_input", *(("gate",) if store.shape.gated else ()))
    for layer in store.shape.kept_layers:
        for document in store.shard(0).layer(layer, kinds):
            value = document.value.repeat_interleave(2, dim=1)
            mixed = torch.einsum("hqk,khd->qhd", document.attention, value)
            gated = mixed if document.gate is None else mixed * document.gate
            assert_close(gated, document.output_input, atol=1e-5, rtol=1e-5)
            assert document.gate is None or (mixed - document.output_input).abs().max() > 0.1


def test_what_is_captured_passes_the_checks_and_the_plain_model(captured: tuple[str, str, Path, Made]) -> None:
    name, _, _, made = captured
    require(check_tables(made.runs, [made.capture]), [made.capture])
    rerun = rerun_sample(made.runs, made.capture, 3, seed=1)
    assert (rerun.problems, rerun.note) == ([], "")
    assert [errors.attention is not None for errors in rerun.layers[:3]] == [i in ATTENDED[name] for i in range(3)]
    assert all(errors.residual is not None and errors.residual < 1e-5 for errors in rerun.layers)


def test_contributions_run_over_the_layers_with_attention(captured: tuple[str, str, Path, Made]) -> None:
    name, _, folder, made = captured
    key = prepare_stage(made.runs, made.capture, "contributions", {"resamples": 20})
    run_stage_shards(
        made.runs, made.capture, "contributions", key, stage_parts_left(made.runs, made.capture, "contributions", key)
    )
    finish_stage(made.runs, made.capture, "contributions", key)
    require(check_tables(made.runs, [made.capture]), [made.capture])
    for table in ("contribution_rows", "sink_fit"):
        found = pq.read_table(folder / "runs" / made.capture / "tables" / table)
        assert set(found["layer"].to_pylist()) == set(ATTENDED[name])
    rows = pq.read_table(folder / "runs" / made.capture / "tables" / "contribution_rows").to_pydict()
    document = next(iter(made.store.shard(0).layer(ATTENDED[name][0], ("output_input",))))
    w_o = made.store.weights(ATTENDED[name][0])[0]
    norms = torch.einsum("thd,hdm->htm", document.output_input, w_o).norm(dim=-1)
    got = [
        norm
        for norm, doc, layer in zip(rows["output_norm"], rows["doc"], rows["layer"], strict=True)
        if (doc, layer) == (document.doc, ATTENDED[name][0])
    ]
    np.testing.assert_allclose(got, norms.flatten().numpy(), rtol=1e-4)


@pytest.mark.parametrize("name", ["qwen3_next", "lfm2"])
def test_a_plan_counts_the_layers_with_attention_alone(name: str, tmp_path: Path) -> None:
    model, text = save_model(tmp_path / "model", name), tmp_path / "text.txt"
    text.write_text(TEXT)
    settings = CaptureSettings(str(model), (str(text),), window=29, device="cpu")
    plan, n = plan_capture(settings, str(tmp_path / "runs")), len(ATTENDED[name])
    tokens = plan.n_tokens
    assert describe(settings).shape.attended == ATTENDED[name]
    assert plan.bytes_by_kind["value"] == n * tokens * 2 * 8 * 4 and plan.bytes_by_kind["residual"] == 4 * tokens * 128
    assert plan.bytes_by_kind.get("gate") == (n * tokens * 4 * 8 * 4 if name == "qwen3_next" else None)
    with pytest.raises(UsageError, match=r"layers of which one has attention \(1(–2)?\), got 0"):
        prepare_capture(CaptureSettings(str(model), (str(text),), window=29, layers="0"), str(tmp_path / "runs"))
    assert open_runs(str(tmp_path / "runs"), create=True)


def test_of_chosen_layers_the_residual_stream_is_kept_with_attention_or_without(tmp_path: Path) -> None:
    model, text = save_model(tmp_path / "model", "lfm2"), tmp_path / "text.txt"
    text.write_text(TEXT)
    made = make(model, [text], tmp_path / "runs", window=29, layers="0-1", device="cpu")
    shape = made.store.shape
    assert shape.kept_layers == (1,) and shape.layer_numbers("residual") == (0, 1, 2)
    require(check_tables(made.runs, [made.capture]), [made.capture])
