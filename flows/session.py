"""What the commands that work have in common: Prefect around the flow, progress, and where the results lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from flows import engine
from flows.captures import pick_capture
from flows.config import RunSettings
from flows.console import output
from flows.outcome import Outcome
from flows.progress import display_for, shown_by
from storage.errors import IncompleteRun, MissingPart
from storage.filesystem import open_runs
from storage.layout import WAREHOUSE
from storage.warehouse import table_counts
from tasks.stages.registry import tables

WITH_MODEL, WITHOUT_MODEL = ("torch", "transformers.modeling_utils"), ("torch",)
"""What a flow will import, which takes seconds: done while Prefect's API starts."""

Result = TypeVar("Result")


def runs_folder(named: str | None) -> str:
    """The folder of runs: the one named, else `runs`."""
    return RunSettings().runs if named is None else named


def in_prefect(flow: Callable[[], Result], first: Callable[[], Sequence[str]]) -> Result:
    """Call something that runs a flow, with Prefect's API beside it and progress on standard error.

    `first` is called while the API starts: what it refuses is refused at once. It returns the modules to load then.
    """
    out = output()
    engine.set_environment(verbose=out.verbose)
    engine.start()
    with shown_by(display_for(out.errors)):
        modules = first()
    with out.waiting("starting Prefect and torch"):
        engine.load_meanwhile(*modules)
        engine.connect()
    with engine.orchestration(), shown_by(display_for(out.errors)):
        return flow()


def run_flow(
    flow: Callable[[], Outcome], runs: str, first: Callable[[], Sequence[str]], capture: str | None = None
) -> Outcome:
    """Run a flow over a folder of runs, and note where its results lie: also those of a run that did not finish.

    capture: the one that the flow is about, where that is known; else the latest is noted.
    """
    try:
        outcome = in_prefect(flow, first)
    except (IncompleteRun, KeyboardInterrupt):
        with suppress(MissingPart):  # interrupted before there was a capture
            add_place(runs, pick_capture(runs, capture))
        raise
    add_place(runs, outcome.capture)
    return outcome


def add_place(runs: str, capture: str) -> None:
    """Put into the JSON object where the capture and the warehouse lie, and the rows of the warehouse's tables."""
    fs = open_runs(runs)
    output().add(
        run=fs.absolute(capture),
        capture=capture,
        warehouse=fs.absolute(WAREHOUSE) if fs.exists(WAREHOUSE) else None,
    )
    output().add(tables=table_counts(fs, tables()))


def report_work(outcome: Outcome) -> None:
    """Print what was done, and what was done already."""
    out = output()
    for work in outcome.work:
        out.say(work.told())
    out.add(work=[{"name": w.name, "shards": w.shards, "reused": w.reused} for w in outcome.work])
