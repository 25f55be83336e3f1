"""The flow `stage`: one stage of one capture, from its store alone."""

from __future__ import annotations

from typing import Any

from prefect import flow
from pydantic import NonNegativeInt, PositiveInt

from flows.captures import pick_capture
from flows.engine import stage_workers
from flows.outcome import Outcome, Work, remember
from flows.progress import work
from flows.steps import finish_or_raise, finish_stage_step, run_shards, stage_block, threads
from tasks.prepared import Prepared
from tasks.stage import prepare_stage, stage_parts_left


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
        workers: shards worked on at once; the cores by default.

    Raises UsageError before any work; IncompleteRun where some shards failed.
    """
    name = pick_capture(runs, capture)
    key = prepare_stage(runs, name, stage, parameters or {}, seed)
    prepared, left = Prepared.open(runs, name), stage_parts_left(runs, name, stage, key)
    total = prepared.n_shards
    failures: dict[int, Exception] = {}
    if left:
        documents = sum(len(prepared.record["shards"][shard]) for shard in left)
        arguments = {"runs": runs, "capture": name, "stage": stage, "key": key}
        with work(stage, documents, "documents"):
            failures = run_shards(stage_block, left, stage_workers(workers), **arguments)
    finish_or_raise(lambda: finish_stage_step(runs, name, stage, key), f"stage {stage}", name, total, failures)
    done = Work(stage, total, total - len(left))
    remember(runs, name, done)
    return Outcome(name, (done,))
