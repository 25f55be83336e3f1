"""What the stage `masking` refuses, before it computes anything, and what it says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from storage.errors import ForeignStore, ModelError, TheodoliteError, UnknownName, UsageError
from tasks.capture import model as loaded
from tasks.capture.folder import CaptureFolder
from tasks.stages.parameters import stage_parameters
from tasks.stages.registry import default_stages, stage
from tasks.stages.run import open_replay, prepare_stage
from tests.families import tiny_model
from tests.tasks.stages.running import captured, run

DECLARED = stage("masking")
QUICK = {"scores": "raw", "scopes": "token", "rates": "0.5"}


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"rates": "0"}, r"rates in \(0, 1\], got 0.0, in masking.rates"),
        ({"rates": "0.1,1.5"}, r"rates in \(0, 1\], got 1.5, in masking.rates"),
        ({"rates": "-0.1"}, r"rates in \(0, 1\], got -0.1"),
        ({"rates": "nan"}, r"rates in \(0, 1\], got nan"),
        ({"rates": "inf"}, r"rates in \(0, 1\], got inf"),
        ({"rates": "much"}, "a valid number.*'much', in masking.rates.0"),
        ({"rates": ""}, "values, each once, got none, in masking.rates"),
        ({"rates": "0.1,0.1000000001"}, "rates that differ in float32, as the tables hold them, got 0.1, 0.1000000001"),
        ({"rates": "0.1,0.10"}, "values, each once, got 0.1, 0.1, of which some are twice, in masking.rates"),
        ({"scores": "raw,vw,raw"}, "each once, got raw, vw, raw, of which some are twice, in masking.scores"),
        ({"scopes": ""}, "expected some of entry, token, row, layer_token, each once, got none, in masking.scopes"),
        ({"keep_first": "true,true"}, "each once.*in masking.keep_first"),
        ({"keep_first": "perhaps"}, "a valid boolean.*'perhaps', in masking.keep_first"),
        ({"layers": "each,each"}, "each once.*in masking.layers"),
        ({"layers": "1-"}, "'1-'.*in masking.layers"),
        ({"layers": "last"}, "'last'.*in masking.layers"),
        ({"draws": "0"}, "draws from 1 to 1,000, got 0, in masking.draws"),
        ({"draws": "1001"}, "draws from 1 to 1,000, got 1001"),
        ({"draws": "some"}, "a valid integer.*'some', in masking.draws"),
        ({"draws": True}, "a number, got True, in masking.draws"),
        ({"scores": "norm", "scopes": "entry,token"}, "norm, alti, rollout with the scope layer_token, got norm with"),
        ({"scores": "alti,rollout", "scopes": "row"}, "Add layer_token to masking.scopes, or other scores"),
    ],
)
def test_values_outside_the_grid(values: Mapping[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        stage_parameters(DECLARED, values)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"scores": "raw,cw_intr"}, "the name of a score, got 'cw_intr', in masking.scores.*cw_intra"),
        ({"scopes": "layertoken"}, "the name of a scope, got 'layertoken', in masking.scopes.*layer_token"),
        ({"directions": "sufficient"}, "a direction, got 'sufficient'.*sufficiency"),
        ({"signs": "absolut"}, "a sign, got 'absolut'.*absolute"),
        ({"reduce": "summ"}, "a reduce, got 'summ'.*sum"),
        ({"rate": "0.1"}, "a parameter, got 'rate', in stage masking.*rates"),
    ],
)
def test_unknown_names_and_the_nearest(values: Mapping[str, Any], told: str) -> None:
    with pytest.raises(UnknownName, match=told):
        stage_parameters(DECLARED, values)


def test_layers_that_the_store_has_not(tmp_path: Path) -> None:
    made = captured(tmp_path, layers="1-2")
    for layers in ("0", "1+3", "7"):
        with pytest.raises(
            UsageError, match=r"layers with attention that the store keeps \(1, 2\), got \d, in masking"
        ):
            run(made, "masking", {**QUICK, "layers": layers})
    ran = run(made, "masking", {**QUICK, "layers": "1,all"})
    assert {row["layers"] for row in ran.rows("masking")} == {"1", "1-2"}


def test_rollout_needs_the_layers_below(tmp_path: Path) -> None:
    made = captured(tmp_path, layers="1-2")
    told = "a store of all layers with attention up to 2.*got one without 0, in masking.scores.*Leave rollout out"
    with pytest.raises(UsageError, match=told):
        run(made, "masking", {"rates": "0.5", "draws": 1})
    rows = run(made, "masking", {"scores": "raw,norm,alti", "rates": "0.5"}).rows("masking")
    assert {row["score"] for row in rows} == {"raw", "norm", "alti"}
    below = captured(tmp_path, layers="0-1")
    assert run(below, "masking", {"scores": "rollout", "rates": "0.5"}).rows("masking")


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"attention": "none"}, "got one without attention.*--attention stored or rebuilt"),
        ({"keep": "value,output_input"}, "got one without residual.*--keep with residual"),
        ({"keep": "residual"}, "got one without value.*--keep with value"),
        ({"heads": "0-1"}, "got one without all heads.*no --heads"),
        ({"positions": "0-5"}, "got one without all query positions.*no --positions"),
    ],
)
def test_a_store_without_what_is_read(settings: dict[str, str], told: str, tmp_path: Path) -> None:
    made = captured(tmp_path, **settings)
    with pytest.raises(UsageError, match=told):
        prepare_stage(made.runs, made.capture, "masking", {})


def test_attention_may_be_rebuilt_and_narrow(tmp_path: Path) -> None:
    made = captured(tmp_path, attention="rebuilt", store_dtype="value=float16")
    assert run(made, "masking", QUICK).rows("masking")


def test_a_rounded_residual_stream(tmp_path: Path) -> None:
    made = captured(tmp_path, store_dtype="residual=float16")
    told = "a residual stream stored in float32, as the model computed it, got float16.*--store-dtype residual=float32"
    with pytest.raises(UsageError, match=told):
        open_replay(made.runs, made.capture)
    with pytest.raises(UsageError, match=told):
        run(made, "masking", QUICK)


def test_weights_that_changed(tmp_path: Path) -> None:
    """Told before any shard, and before anything is computed."""
    made = captured(tmp_path)
    changed = tiny_model("llama")
    with torch.no_grad():
        next(changed.parameters()).add_(1e-3)
    changed.save_pretrained(tmp_path / "model")
    loaded._load.cache_clear()  # which holds the weights that were captured
    told = r"the model that was captured \(digest .*Its files changed since the capture was prepared"
    with pytest.raises(ForeignStore, match=told):
        open_replay(made.runs, made.capture)
    for name, values in (("masking", QUICK), ("sink", {})):
        with pytest.raises(ForeignStore, match=told):
            run(made, name, values)


def test_gemma_3n_shares_values_between_layers(tmp_path: Path) -> None:
    made = captured(tmp_path, "gemma3n_text")
    with pytest.raises(ModelError, match=r"layers that compute keys and values of their own.*got Gemma 3n"):
        open_replay(made.runs, made.capture)


def test_a_family_that_hides_its_weights(tmp_path: Path) -> None:
    """BLOOM computes attention inside its own module: entries cannot be reached, whole keys can."""
    made = captured(tmp_path, "bloom")
    for scope in ("entry", "row"):
        with pytest.raises(ModelError, match=r"attention weights can be reached.*got BLOOM.*Keys can be dropped"):
            run(made, "masking", {**QUICK, "scopes": scope})
    assert run(made, "masking", {**QUICK, "scopes": "layer_token"}).rows("masking")


def test_an_encoder_predicts_nothing(tmp_path: Path) -> None:
    made = captured(tmp_path, "bert")
    for name, values in (("masking", QUICK), ("sink", {})):
        with pytest.raises(TheodoliteError, match=r"a model that predicts the next token.*got BERT"):
            run(made, name, values)


def test_a_norm_that_alti_cannot_follow(tmp_path: Path) -> None:
    made = captured(tmp_path, "bloom-post")
    with pytest.raises(ModelError, match=r"a norm after attention.*Leave out alti"):
        run(made, "masking", {**QUICK, "scores": "raw,alti", "scopes": "layer_token"})


def test_what_runs_the_model_again_is_not_done_unless_told() -> None:
    assert "contributions" in default_stages()
    assert not {"masking", "sink"} & set(default_stages())


def test_a_grid_that_does_not_fit_the_store_leaves_the_older_run_in_place(tmp_path: Path) -> None:
    made = captured(tmp_path)
    done = run(made, "masking", QUICK)
    manifest = CaptureFolder.open(made.runs, made.capture).manifest
    before = manifest.stage_runs()
    assert done.key in {record["key"] for record in before}
    with pytest.raises(UsageError, match=r"layers with attention that the store keeps .*, got 99, in masking.layers"):
        prepare_stage(made.runs, made.capture, "masking", {**QUICK, "layers": "99"})
    assert manifest.stage_runs() == before
