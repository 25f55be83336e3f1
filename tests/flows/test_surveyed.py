"""A stage that surveys, as its flow runs it: what is shown, what is done again, and what a failed shard stops."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from flows.progress import shown_by
from storage.errors import CaptureCheckError, IncompleteRun
from tasks.stages import run as stage_life
from tests.tasks.stages.running import Ran, captured, run

pytestmark = pytest.mark.usefixtures("prefect_here")

VALUES = {"strategies": "entropy_low,random", "retentions": "0.5", "seeds": 1}
TEXT = "The quick brown fox jumps over the lazy dog"


@dataclass
class Shown:
    """Every piece of work in order: its total, and what it came to."""

    works: list[list[Any]] = field(default_factory=list)

    def begin(self, kind: str, total: float, unit: str) -> None:
        self.works.append([kind, total, unit, 0.0])

    def advance(self, kind: str, step: float, restored: bool = False) -> None:
        assert self.works[-1][0] == kind
        self.works[-1][3] += step

    def end(self, kind: str) -> None:
        assert self.works[-1][0] == kind

    def waiting(self, what: str) -> Any:
        return nullcontext()


def stage(runs: str) -> tuple[Any, list[tuple[Any, ...]]]:
    """The flow's outcome, and what was shown."""
    from flows.stage_run import stage_run

    shown = Shown()
    with shown_by(shown):
        outcome = stage_run("pruning", runs=runs, parameters=VALUES)
    return outcome, [(kind, total, unit, pytest.approx(done)) for kind, total, unit, done in shown.works]


def test_the_survey_is_work_of_its_own_and_done_once(tmp_path: Path) -> None:
    made = captured(tmp_path, text=TEXT, shard_tokens=26, batch_tokens=13)
    outcome, shown = stage(made.runs)
    assert shown == [("pruning: survey", 4, "documents", 4), ("pruning", 4, "documents", 4)]
    assert [(work.name, work.shards, work.reused) for work in outcome.work] == [("pruning", 2, 0)]
    outcome, shown = stage(made.runs)
    assert shown == [] and outcome.work[0].reused == 2
    again = captured(tmp_path / "again", text=TEXT, shard_tokens=26, batch_tokens=13)
    ran = run(again, "pruning", VALUES)
    assert Ran(made, "pruning", ran.key).bytes("pruning") == ran.bytes("pruning")


def test_a_shard_that_fails_is_told_before_any_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = captured(tmp_path, text=TEXT, shard_tokens=26, batch_tokens=13)
    surveyor = stage_life._StageWork.surveyor

    def failing(work: stage_life._StageWork) -> Any:
        compute = surveyor(work)

        def of_shard(shard: int, staging: str) -> Any:
            if shard == 1:
                raise CaptureCheckError("a shard that can be read", got="shard 1")
            return compute(shard, staging)

        return of_shard

    with monkeypatch.context() as patch:
        patch.setattr(stage_life._StageWork, "surveyor", failing)
        with pytest.raises(IncompleteRun, match=r"every shard of the survey of stage pruning, got 1 of 2 failed \(1\)"):
            stage(made.runs)
    _, shown = stage(made.runs)
    assert shown == [("pruning: survey", 2, "documents", 2), ("pruning", 4, "documents", 4)]
