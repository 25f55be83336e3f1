"""A model that reads images, from the command line: plan, capture, status, verify, sql and a stage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.flows.command import Answer
from tests.tasks.corpora.pictures import save_model, save_pictures

pytest.importorskip("PIL", reason="Pillow is not installed: pip install 'theodolite[images]'")

Call = Callable[..., Answer]


def test_images_from_plan_to_sql(call_flow: Call, tmp_path: Path) -> None:
    save_model(tmp_path / "dinov2", "dinov2")
    save_pictures(tmp_path / "images", 3)
    what = ("--model", "dinov2", "--corpus", "images")
    planned = call_flow("plan", *what, "--json")
    assert planned.code == 0, planned.err
    assert (planned.content["plan"]["n_docs"], planned.content["plan"]["n_tokens"]) == (3, 3 * 31)

    captured = call_flow("capture", *what, "--runs", "runs", "--json")
    assert captured.code == 0, captured.err
    assert captured.content["tables"] == {**captured.content["tables"], "captures": 1, "documents": 3, "tokens": 93}
    again = call_flow("capture", *what, "--runs", "runs", "--json")
    assert again.content["capture"] == captured.content["capture"]
    assert again.content["work"][0]["reused"] == again.content["work"][0]["shards"]

    status = call_flow("status", "--runs", "runs")
    assert "done" in status.out and captured.content["capture"] in status.out
    verified = call_flow("verify", "--runs", "runs", "--documents", "3", "--json")
    assert verified.code == 0, verified.err
    sample = verified.content["verify"]["sample"]
    assert (sample["documents"], sample["problems"]) == ([0, 1, 2], [])
    assert all(layer["residual"] < 1e-4 and layer["nll"] is None for layer in sample["layers"])

    first = "select token, token_id from tokens where doc = 2 order by position limit 2"
    asked = call_flow("sql", first, "--runs", "runs")
    assert "[CLS]" in asked.out and "patch 0,0" in asked.out
    measured = call_flow("stage", "contributions", "--runs", "runs", "--json")
    assert measured.code == 0, measured.err
    assert measured.content["tables"]["contribution_rows"] == 93 * 3 * 4
    wrong = call_flow("capture", *what, "--window", "64", "--runs", "runs")
    assert wrong.code == 2 and "an image is always the model's 31 tokens" in wrong.err


def test_models_that_read_images_are_listed(call_flow: Call) -> None:
    listed = call_flow("models")
    assert "DINOv2 with registers" in listed.out and "encoder of images" in listed.out
