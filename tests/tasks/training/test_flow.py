"""The flow's parameters: those of the settings, typed so that a deployment shows them."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from flows.train_run import train_run
from tasks.training.settings import TrainSettings
from tests.flows.command import theodolite


def test_the_flow_leaves_what_is_not_given_to_the_variant() -> None:
    signature = inspect.signature(train_run.fn)
    settings = TrainSettings()
    shared = [name for name in signature.parameters if hasattr(settings, name)]
    sizes = ["variant", "steps", "batch", "context", "seed", "layers", "heads", "width"]
    assert shared == [*sizes, "optimiser", "learning_rate", "warm_up_steps", "dropout", "precision", "gate_statistics"]
    assert signature.parameters["variant"].default == settings.variant
    assert {signature.parameters[name].default for name in shared[1:]} == {None}


def test_its_parameters_are_typed_and_described() -> None:
    properties = train_run.parameters.properties
    assert properties["steps"]["anyOf"] == [{"type": "integer"}, {"type": "null"}]
    assert properties["text"]["anyOf"][0] == {"items": {"type": "string"}, "type": "array"}
    assert train_run.parameters.required == ["out"]


@pytest.mark.parametrize("given", [("--checkpoint-every", "0"), ("--variant", "base", "--learning-rate", "inf")])
def test_what_cannot_be_is_refused_before_prefect_starts(tmp_path: Path, given: tuple[str, ...]) -> None:
    home = tmp_path / "prefect"
    answer = theodolite("train", "model", *given, home=home, cwd=tmp_path)
    assert (answer.code, "in training settings" in answer.err) == (2, True), answer.err
    assert not home.exists() and not (tmp_path / "model").exists()
