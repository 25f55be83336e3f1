"""The flow `stage`: one stage of one capture, from its store alone."""

from __future__ import annotations

from typing import Any

from prefect import flow
from pydantic import NonNegativeInt, PositiveInt

from flows.captures import pick_capture
from flows.engine import stage_workers, use_all_cores
from flows.outcome import Outcome, Work, remember
from flows.progress import waiting, work
from flows.steps import (
    finish_or_raise,
    finish_stage_step,
    finish_survey_step,
    run_shards,
    stage_block,
    survey_block,
    threads,
)
from tasks.capture.folder import Prepared
from tasks.stages.registry import DOCUMENTS
from tasks.stages.registry import stage as declared
from tasks.stages.run import documents_in, open_replay, prepare_stage, stage_parts_left, stage_units
from tasks.stages.survey import survey_name, survey_parts_left


@flow(name="stage", task_runner=threads(1), persist_result=False, retries=0)
def stage_run(
    stage: str = "contributions",
    capture: str | None = None,
    parameters: dict[str, Any] | None = None,
    runs: str = "runs",
    seed: NonNegativeInt = 0,
    workers: PositiveInt | None = None,
) -> Outcome:
    """Do one stage of a capture.

    Args:
        stage: the stage's name.
        capture: the capture's id; the latest by default.
        parameters: the stage's parameters that differ from their defaults.
        runs: the folder of runs.
        seed: the seed of everything that is drawn.
        workers: shards worked on at once; the cores by default. Of a stage that runs the model again it is one, since
            the device, or all cores, belong to it.

    Raises UsageError before any work, ModelError or ForeignStore where the model cannot run again; IncompleteRun where
    some shards failed.
    """
    name = pick_capture(runs, capture)
    if declared(stage).needs_model:
        use_all_cores()
    with waiting("looking at the model" if declared(stage).needs_model else "looking at the store"):
        key = prepare_stage(runs, name, stage, parameters or {}, seed)
    prepared, left = Prepared.open(runs, name), stage_parts_left(runs, name, stage, key)
    total = prepared.n_shards
    arguments = {"runs": runs, "capture": name, "stage": stage, "key": key}
    failures = _work(arguments, left, total, workers)
    finish_or_raise(lambda: finish_stage_step(runs, name, stage, key), f"stage {stage}", name, total, failures)
    done = Work(stage, total, total - len(left))
    remember(runs, name, done)
    return Outcome(name, (done,))


def _work(arguments: dict[str, str], left: list[int], total: int, workers: int | None) -> dict[int, Exception]:
    """The stage's survey, if it makes one, and the shards that are left; the errors of those that failed."""
    runs, name, stage = arguments["runs"], arguments["capture"], arguments["stage"]
    replays = declared(stage).needs_model and bool(left)
    at_once = _ready(runs, name) if replays else stage_workers(workers)
    if declared(stage).surveys:
        _survey(arguments, total, stage_workers(workers))
    if not left:
        return {}
    if replays:
        use_all_cores()  # the survey, as what reads the store alone, left one to each thread
    with work(stage, stage_units(runs, name, stage, arguments["key"], left), declared(stage).unit):
        return run_shards(stage_block, left, at_once, **arguments)


def _survey(arguments: dict[str, str], total: int, workers: int) -> None:
    """What the stage must know of all shards before any has rows. Raises what `stage_run` does."""
    runs, name, stage = arguments["runs"], arguments["capture"], arguments["stage"]
    failures: dict[int, Exception] = {}
    if left := survey_parts_left(runs, name, stage, arguments["key"]):
        with work(survey_name(stage), documents_in(Prepared.open(runs, name), left), DOCUMENTS):
            failures = run_shards(survey_block, left, workers, **arguments)
    finish_or_raise(lambda: finish_survey_step(**arguments), f"the survey of stage {stage}", name, total, failures)


def _ready(runs: str, capture: str) -> int:
    """Load the captured model before any shard, so that what is wrong with it is told once; how many shards at once."""
    use_all_cores()
    with waiting("loading the model"):
        open_replay(runs, capture)
    return 1
