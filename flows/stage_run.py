"""The flow `stage`: one stage of one capture, from its store alone."""

from __future__ import annotations

from typing import Any

from prefect import flow
from pydantic import NonNegativeInt, PositiveInt

from flows.captures import pick_capture
from flows.engine import stage_workers, use_all_cores
from flows.outcome import Outcome, Work, remember
from flows.progress import waiting, work
from flows.steps import finish_or_raise, finish_stage_step, run_shards, stage_block, threads
from tasks.prepared import Prepared
from tasks.registry import stage as declared
from tasks.stage import open_replay, prepare_stage, stage_parts_left, stage_units


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
    key = prepare_stage(runs, name, stage, parameters or {}, seed)
    prepared, left = Prepared.open(runs, name), stage_parts_left(runs, name, stage, key)
    total = prepared.n_shards
    failures: dict[int, Exception] = {}
    if left:
        units = stage_units(runs, name, stage, key, left)
        arguments = {"runs": runs, "capture": name, "stage": stage, "key": key}
        at_once = _ready(runs, name) if declared(stage).needs_model else stage_workers(workers)
        with work(stage, units, declared(stage).unit):
            failures = run_shards(stage_block, left, at_once, **arguments)
    finish_or_raise(lambda: finish_stage_step(runs, name, stage, key), f"stage {stage}", name, total, failures)
    done = Work(stage, total, total - len(left))
    remember(runs, name, done)
    return Outcome(name, (done,))


def _ready(runs: str, capture: str) -> int:
    """Load the captured model before any shard, so that what is wrong with it is told once; how many shards at once."""
    use_all_cores()
    with waiting("loading the model"):
        open_replay(runs, capture)
    return 1
