"""The flow `full-run`: a capture, its stages in order, and the checks of their tables."""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.task_runners import ThreadPoolTaskRunner

from flows.capture_run import capture_run
from flows.checking import require
from flows.config import CaptureConfig
from flows.outcome import Outcome
from flows.stage_run import stage_run
from flows.steps import check_tables_step
from storage.errors import IncompleteRun
from tasks.registry import stages as registered


@flow(name="full-run", task_runner=ThreadPoolTaskRunner(max_workers=1), persist_result=False, retries=0)
def full_run(
    capture: CaptureConfig = CaptureConfig(),  # noqa: B008 - frozen
    stages: list[str] | None = None,
    parameters: dict[str, dict[str, Any]] | None = None,
    runs: str = "runs",
    seed: int = 0,
    workers: int | None = None,
) -> Outcome:
    """Capture a model over a corpus, do the stages, and check the identities that their tables must hold.

    Args:
        capture: the model, the corpus, and how they are captured.
        stages: the stages, in order; all by default.
        parameters: by stage, the parameters that differ from their defaults.
        runs: the folder of runs.
        seed: the seed of everything that is drawn.
        workers: shards of a stage worked on at once; the cores by default.

    Raises UsageError, CorpusError or ModelError before any work; IncompleteRun where some shards failed, after every
    stage had its turn; ChecksFailed where an identity is broken.
    """
    captured = capture_run(capture, runs)
    work, unfinished = captured.work, None
    for name in registered() if stages is None else stages:
        try:
            done = stage_run(name, captured.capture, (parameters or {}).get(name), runs, seed, workers)
            work += done.work
        except IncompleteRun as error:
            unfinished = unfinished or error
    if unfinished:
        raise unfinished
    require(check_tables_step(runs, [captured.capture]), [captured.capture])
    return Outcome(captured.capture, work)
