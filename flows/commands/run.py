"""The commands that work: run, capture, stage. Each is a Prefect flow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from flows import options as o
from flows.capture_options import CaptureOptions, with_capture_options
from flows.captures import pick_capture
from flows.config import Config
from flows.config_file import chosen_stages, configure, require_kept, stage_changes
from flows.console import answering, output
from flows.progress import work
from flows.session import WITH_MODEL, WITHOUT_MODEL, report_work, run_flow, runs_folder
from flows.summary import tell_account, tell_found, tell_next, tell_place
from storage.errors import UnknownName
from tasks.capture.folder import CaptureFolder
from tasks.models.loading import pick_device
from tasks.stages.parameters import stage_parameters
from tasks.stages.registry import stage as declared
from tasks.stages.requirements import require_captured


@answering
@with_capture_options()
def run(
    config: o.ConfigFile = None,
    *,
    options: CaptureOptions,
    runs: o.Runs = None,
    stages: o.Stages = None,
    set_: o.Set = None,
    seed: o.Seed = None,
    workers: o.Workers = None,
    as_json: o.Json = False,
    verbose: o.Verbose = False,
) -> None:
    """Capture, run the stages, check the tables, print what was found. Without arguments: the sample model and text."""
    chosen = configure(
        config,
        {
            "capture": options,
            "run": {"runs": runs, "stages": stages, "seed": seed, "workers": workers},
        },
        set_ or (),
    )

    require_kept(chosen.capture, chosen_stages(chosen))

    prepared = ""

    def first() -> Sequence[str]:
        nonlocal prepared
        prepared = _prepare(chosen)
        return _modules(chosen.run.runs, prepared)

    def flow() -> Any:
        from flows.full_run import full_run

        parameters = {name: dict(values) for name, values in chosen.stages.items()}
        return full_run(
            chosen.capture,
            list(chosen_stages(chosen)),
            parameters,
            chosen.run.runs,
            chosen.run.seed,
            chosen.run.workers,
            prepared,
        )

    outcome = run_flow(flow, chosen.run.runs, first)
    report_work(outcome)
    own = config is not None or options["max_documents"] is not None
    tell_account(chosen.run.runs, outcome, None if own else chosen.capture.max_documents)
    tell_place(chosen.run.runs, outcome.capture)
    tell_next(chosen.run.runs, outcome.capture)


@answering
@with_capture_options(required=("model", "corpus"))
def capture(
    *,
    options: CaptureOptions,
    runs: o.Runs = None,
    as_json: o.Json = False,
    verbose: o.Verbose = False,
) -> None:
    """Capture a model over a corpus into an activation store."""
    chosen = configure("everything", {"capture": options, "run": {"runs": runs}}, ())

    prepared = ""

    def first() -> Sequence[str]:
        nonlocal prepared
        prepared = _prepare(chosen)
        return _modules(chosen.run.runs, prepared)

    def flow() -> Any:
        from flows.capture_run import capture_run

        return capture_run(chosen.capture, chosen.run.runs, prepared)

    outcome = run_flow(flow, chosen.run.runs, first)
    report_work(outcome)
    tell_place(chosen.run.runs, outcome.capture)


def _prepare(chosen: Config) -> str:
    """Prepare the capture before the flow starts: a mistake in the model, the text or a setting is reported at once."""
    from tasks.capture.plan import prepare_capture

    if chosen.capture.device not in ("auto", "cpu"):
        pick_device(chosen.capture.device)  # it loads torch, which is needed anyway
    return prepare_capture(chosen.capture, chosen.run.runs, work)


def _modules(runs: str, capture: str) -> Sequence[str]:
    """What the flow of a prepared capture will import."""
    return WITH_MODEL if CaptureFolder.open(runs, capture).shards_left() else WITHOUT_MODEL


@answering
def stage(
    name: Annotated[str, typer.Argument(help="The stage's name, such as contributions.")],
    capture: o.Capture = None,
    runs: o.Runs = None,
    set_: o.Set = None,
    seed: o.Seed = None,
    workers: o.Workers = None,
    as_json: o.Json = False,
    verbose: o.Verbose = False,
) -> None:
    """Do one stage of a capture from its store; of a stage that runs the model again, with that model."""
    changes = stage_changes(set_ or ())
    declared(name).check_files(stage_parameters(declared(name), changes.pop(name, {})))
    for other in changes:
        raise UnknownName.among("stage to set here", other, (name,), where="--set")

    where = runs_folder(runs)

    def first() -> Sequence[str]:
        require_captured(CaptureFolder.open(where, pick_capture(where, capture)), declared(name))
        return WITH_MODEL if declared(name).needs_model else WITHOUT_MODEL

    def flow() -> Any:
        from flows.stage_run import stage_run

        return stage_run(name, capture, stage_changes(set_ or ()).get(name), where, seed or 0, workers)

    outcome = run_flow(flow, where, first, capture)
    report_work(outcome)
    tell_found(where, outcome)
    tell_place(where, outcome.capture)
    output().add(stage=name)
