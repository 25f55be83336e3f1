"""The flow `capture`: one model over one corpus into an activation store, shard by shard."""

from __future__ import annotations

from prefect import flow

from flows.engine import use_all_cores
from flows.outcome import Outcome, StageDone, remember
from flows.progress import work
from flows.steps import capture_block, finish_capture_step, finish_or_raise, run_shards, threads
from tasks.capture.finish import request_capture
from tasks.capture.folder import CaptureFolder
from tasks.capture.plan import prepare_capture
from tasks.capture.settings import CaptureSettings

_ONE_DEVICE = 1
"""Shards of a capture are worked on one after the other: the device, or all cores, belong to the one under way."""


@flow(name="capture", task_runner=threads(_ONE_DEVICE), persist_result=False, retries=0)
def capture_run(
    capture: CaptureSettings = CaptureSettings(),  # noqa: B008 - frozen
    runs: str = "runs",
    prepared: str | None = None,
) -> Outcome:
    """Capture a model's attention, values and hidden states over a corpus.

    Args:
        capture: the model, the corpus, and how they are captured.
        runs: the folder of runs.
        prepared: the id of the capture, where the caller prepared it from the same settings.

    Raises UsageError, CorpusError or ModelError before any work; IncompleteRun where some shards failed.
    """
    name = prepared or prepare_capture(capture, runs, work)
    request_capture(runs, name)
    folder = CaptureFolder.open(runs, name)
    left = folder.shards_left()
    total, lengths = folder.n_shards, folder.record["lengths"]
    failures: dict[int, Exception] = {}
    if left:
        tokens = sum(lengths[doc] for shard in left for doc in folder.record["shards"][shard])
        use_all_cores()
        with work("capture", tokens, "tokens"):
            failures = run_shards(capture_block, left, _ONE_DEVICE, runs=runs, capture=name)
    finish_or_raise(lambda: finish_capture_step(runs, name), "the capture", name, total, failures)
    done = StageDone("capture", total, total - len(left))
    remember(runs, name, done)
    return Outcome(name, (done,))
