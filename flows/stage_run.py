"""The flow `stage`: one stage of one capture, from its store alone."""

from __future__ import annotations

from typing import Any

from prefect import flow
from pydantic import NonNegativeInt, PositiveInt

from flows.captures import pick_capture
from flows.engine import stage_workers, use_all_cores
from flows.outcome import Outcome, StageDone, remember
from flows.progress import waiting, work
from flows.steps import finish_or_raise, finish_stage_step, run_shards, stage_block, threads
from tasks.capture.folder import CaptureFolder
from tasks.stages.registry import stage as declared
from tasks.stages.requirements import open_replay
from tasks.stages.run import ROWS, SURVEY, phase_unit, prepare_stage, stage_parts_left, stage_units


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
    arguments = {"runs": runs, "capture": name, "stage": stage, "key": key}
    left, total = stage_parts_left(runs, name, stage, key), CaptureFolder.open(runs, name).n_shards
    if declared(stage).surveys:
        _do(arguments, SURVEY, stage_workers(workers), f"the survey of stage {stage}", total)
    _do(arguments, ROWS, _workers(arguments, workers) if left else 1, f"stage {stage}", total)
    done = StageDone(stage, total, total - len(left))
    remember(runs, name, done)
    return Outcome(name, (done,))


def _do(arguments: dict[str, str], phase: str, workers: int, what: str, total: int) -> None:
    """Do the shards that are left of a phase and combine them. Raises what `stage_run` does."""
    runs, capture, stage, key = (arguments[name] for name in ("runs", "capture", "stage", "key"))
    named = {**arguments, "phase": phase}
    failures: dict[int, Exception] = {}
    if left := stage_parts_left(runs, capture, stage, key, phase):
        kind, unit = phase_unit(stage, phase)
        with work(kind, stage_units(runs, capture, stage, key, left, phase), unit):
            failures = run_shards(stage_block, left, workers, **named)
    finish_or_raise(lambda: finish_stage_step(**named), what, capture, total, failures)


def _workers(arguments: dict[str, str], workers: int | None) -> int:
    """How many shards at once; one of a stage that runs the model, which is loaded before any shard, so that a fault in
    it is reported once."""
    if not declared(arguments["stage"]).needs_model:
        return stage_workers(workers)
    use_all_cores()  # a survey, which reads the store alone, left one thread to each worker
    with waiting("loading the model"):
        open_replay(arguments["runs"], arguments["capture"])
    return 1
