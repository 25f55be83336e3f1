"""A capture and a stage in a process of their own, for tests that kill it.

Usage: `python -m tests.tasks.capture.worker RUNS TEXT [CHANGE]`.

Prints `ready` when everything is imported and `done` at the end. With CHANGE it prints `waiting` before it makes that
change (from 1) to the folder of runs, and waits there, so that a test can kill it where it matters.
"""

from __future__ import annotations

import sys
import warnings

from tasks.capture.finish import finish_capture, request_capture
from tasks.capture.plan import prepare_capture
from tasks.capture.run import capture_shards, shards_left
from tasks.capture.settings import CaptureSettings
from tasks.stages.run import finish_stage, prepare_stage, run_stage_shards, stage_parts_left
from tests.changes import Changes


def settings(text: str) -> CaptureSettings:
    return CaptureSettings("sample", (text,), window=64, max_documents=24, shard_tokens=256, batch_tokens=128)


def run(runs: str, text: str) -> str:
    """Everything of one run folder; returns the capture's id."""
    import torch

    torch.set_num_threads(1)
    capture = prepare_capture(settings(text), runs)
    request_capture(runs, capture)
    capture_shards(runs, capture, shards_left(runs, capture))
    finish_capture(runs, capture)
    key = prepare_stage(runs, capture, "contributions", {"resamples": 50})
    run_stage_shards(runs, capture, "contributions", key, stage_parts_left(runs, capture, "contributions", key))
    finish_stage(runs, capture, "contributions", key)
    return capture


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print("ready", flush=True)  # noqa: T201
    if len(sys.argv) > 3:
        Changes(sys.argv[1], int(sys.argv[3])).watch()
    run(sys.argv[1], sys.argv[2])
    print("done", flush=True)  # noqa: T201
