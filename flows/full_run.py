"""The flow `full-run`: a capture, its stages in order, and the checks of their tables."""

from __future__ import annotations

from typing import Any

from prefect import flow
from pydantic import NonNegativeInt, PositiveInt

from flows.capture_run import capture_run
from flows.config_file import require_kept
from flows.outcome import Outcome
from flows.progress import waiting
from flows.stage_run import stage_run
from flows.steps import STOPPING, check_tables_step, threads
from tasks.capture.settings import CaptureSettings
from tasks.stages.parameters import stage_parameters
from tasks.stages.registry import default_stages
from tasks.stages.registry import stage as declared


@flow(name="full-run", task_runner=threads(1), persist_result=False, retries=0)
def full_run(
    capture: CaptureSettings = CaptureSettings(),  # noqa: B008 - frozen
    stages: list[str] | None = None,
    parameters: dict[str, dict[str, Any]] | None = None,
    runs: str = "runs",
    seed: NonNegativeInt = 0,
    workers: PositiveInt | None = None,
    prepared: str | None = None,
) -> Outcome:
    """Capture a model over a corpus, do the stages, and check the identities that their tables must hold.

    Args:
        capture: the model, the corpus, and how they are captured.
        stages: the stages, in order; those that are quick (not `on_request`) by default.
        parameters: by stage, the parameters that differ from their defaults.
        runs: the folder of runs.
        seed: the seed of everything that is drawn.
        workers: shards of a stage worked on at once; the cores by default.
        prepared: the id of the capture, where the caller prepared it from the same settings.

    Raises UsageError, CorpusError or ModelError before any work; after every stage had its turn, the error of the first
    stage that failed, IncompleteRun where some of its shards did; ChecksFailed where an identity is broken.
    """
    chosen = {name: (parameters or {}).get(name, {}) for name in (default_stages() if stages is None else stages)}
    for name, values in chosen.items():
        stage_of = declared(name)  # before any work: a wrong parameter, or line of a file, must not cost a capture
        stage_of.check_files(stage_parameters(stage_of, values))
    require_kept(capture, list(chosen))
    captured = capture_run(capture, runs, prepared)
    work = captured.work
    failed: Exception | None = None
    for name, values in chosen.items():
        try:
            done = stage_run(name, captured.capture, values, runs, seed, workers)
            work += done.work
        except STOPPING:
            raise
        except Exception as error:  # a stage that failed keeps no other from its turn; the first is reported
            failed = failed or error
    if failed is not None:
        raise failed
    with waiting("checking the tables"):
        checks = check_tables_step(runs, captured.capture)
    return Outcome(captured.capture, work, checks)
