"""Stages that run the model again, as a user starts them: what they leave, and what is told before any shard."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from flows.config_file import chosen_stages, configure
from tasks.stages.registry import stages
from tests.families import tiny_model
from tests.flows.command import Answer
from tests.tasks.stages.running import captured

Call = Callable[..., Answer]
SMALL = ("--set", "masking.rates=0.5", "--set", "masking.scores=raw,random", "--set", "masking.draws=1")


def test_stages_that_run_the_model_again_are_asked_for() -> None:
    """Not done by default, as all that takes long."""
    by_default = chosen_stages(configure(None, {"capture": {}, "run": {}}, ()))
    assert set(by_default) == {name for name, declared in stages().items() if not declared.on_request}
    assert not any(stages()[name].needs_model for name in by_default)


@pytest.mark.timeout(600)
def test_masking_by_command(call: Call, call_flow: Call, tmp_path: Path) -> None:
    """A parameter that cannot be, the stage done, and the model exchanged behind its back."""
    made = captured(tmp_path)
    where = ("--runs", made.runs)
    refused = call_flow("stage", "masking", *where, "--set", "masking.draws=0", "--json")
    assert refused.code == 2 and "expected draws from 1 to 1,000, got 0, in masking.draws" in refused.err

    done = call_flow("stage", "masking", *where, *SMALL, "--json")
    assert done.code == 0, done.err
    assert done.content["work"] == [{"name": "masking", "shards": 1, "reused": 0}]
    assert done.content["tables"]["masking"] == 3 * 4 * 2 * 2  # documents, scopes, directions, scores
    changed = tiny_model("llama")
    with torch.no_grad():
        next(changed.parameters()).add_(1e-3)
    changed.save_pretrained(tmp_path / "model")
    foreign = call("stage", "sink", *where, "--json")
    assert foreign.code != 0
    assert "the model that was captured (digest" in foreign.err and "Its files changed since" in foreign.err
    assert "shard 0" not in foreign.err
