"""The flow's parameters: those of the settings, with the same defaults, and typed so that a deployment shows them."""

from __future__ import annotations

import inspect

from flows.train_run import train_run
from tasks.training.settings import TrainSettings


def test_the_flow_has_the_defaults_of_the_settings() -> None:
    signature = inspect.signature(train_run.fn)
    settings = TrainSettings()
    shared = [name for name in signature.parameters if hasattr(settings, name)]
    assert shared == ["steps", "batch", "context", "seed", "layers", "heads", "width"]
    assert all(signature.parameters[name].default == getattr(settings, name) for name in shared)


def test_its_parameters_are_typed_and_described() -> None:
    properties = train_run.parameters.properties
    assert properties["steps"]["type"] == "integer"
    assert properties["text"]["anyOf"][0] == {"items": {"type": "string"}, "type": "array"}
    assert train_run.parameters.required == ["out"]
