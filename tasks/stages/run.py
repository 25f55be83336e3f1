"""The life of a stage over one capture: prepare → survey → shards → finish.

A stage is a reduction over the shards of the capture, and its survey, where it has one, is another reduction before it.
Both are a `Phase`: a part for each shard, done in any order, then one part that combines them in shard order. Each part
is published once, by the rule of tasks/shard.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Self

from storage import layout
from storage.errors import RESUME, IncompleteRun
from tasks.capture.folder import CaptureFolder
from tasks.run_record import StageRun, mark, request
from tasks.shard import PartResult
from tasks.stages.checkpoints import Checkpoints, forget
from tasks.stages.contract import DOCUMENTS, Stage, StageContext
from tasks.stages.key import stage_key
from tasks.stages.parameters import stage_parameters
from tasks.stages.parts import PartRows, keep_partial, progress_of, publish_part, read_partial
from tasks.stages.registry import stage
from tasks.stages.requirements import open_replay, open_store, require_captured, require_files

if TYPE_CHECKING:
    from storage.tensors import ActivationStore
    from tasks.replay import CapturedReplay
    from tasks.stages.contract import Partial

SURVEY, ROWS = "survey", "rows"
"""The phases of a stage, in order; only some stages have the first."""


@dataclass(frozen=True)
class Phase:
    """One reduction over the shards: how its parts are called."""

    of_shard: Callable[[int], str]
    combined: str


_PHASES = {SURVEY: Phase(layout.survey_part, layout.SURVEY), ROWS: Phase(layout.shard_part, layout.FINAL)}


def prepare_stage(runs: str, capture: str, name: str, overrides: Mapping[str, Any], seed: int = 0) -> str:
    """Record what is to be done and return its key, which is the stage's current key from now on.

    Raises UnknownName or UsageError for a stage, parameter or store that is not accepted, and CorpusError for a text
    that the model cannot take, before anything runs.
    """
    prepared, declared = CaptureFolder.open(runs, capture), stage(name)
    parameters = stage_parameters(declared, overrides)
    require_captured(prepared, declared)
    if declared.require_store is not None:
        declared.require_store(parameters, open_store(prepared, declared).shape, prepared.record["lengths"])
    key = stage_key(declared, parameters, prepared.record["key"], seed)
    if declared.needs_model and stage_parts_left(runs, capture, name, key):
        replay = open_replay(runs, capture)  # what is refused here must not replace an older run
        if declared.reads_texts:
            declared.steps.require_fitting(parameters, replay)
    request(prepared, StageRun(name, key, declared.version, declared.describe(parameters), seed))
    return key


def stage_parts_left(runs: str, capture: str, name: str, key: str, phase: str = ROWS) -> list[int]:
    """The shards whose part of this phase is not published yet; none of the survey of a stage without one."""
    if phase == SURVEY and not stage(name).surveys:
        return []
    return _left(CaptureFolder.open(runs, capture), name, key, phase)


def _left(prepared: CaptureFolder, name: str, key: str, phase: str) -> list[int]:
    records = (prepared.layout.part_record(name, key, part) for part in _parts(prepared, phase))
    return [shard for shard, path in enumerate(records) if prepared.manifest.published(path) is None]


def _parts(prepared: CaptureFolder, phase: str) -> Iterator[str]:
    return map(_PHASES[phase].of_shard, range(prepared.n_shards))


def run_stage_shards(
    runs: str, capture: str, name: str, key: str, shards: Sequence[int], phase: str = ROWS
) -> list[int]:
    """Do this phase of the stage for these shards; returns those that were done here and now.

    What reads the store alone runs on one thread whatever the machine, so that the same key gives the same bytes with
    any number of workers. A replay takes all threads, as the capture did.
    """
    import torch

    work = _StageWork.open(runs, capture, name, key)
    replay = open_replay(runs, capture) if work.stage.needs_model and phase == ROWS else None
    if replay is None:
        torch.set_num_threads(1)
    require_files(work.prepared, work.stage, work.run)
    compute = work.surveyor() if phase == SURVEY else work.rows_of_shards(replay)
    part = _PHASES[phase].of_shard

    def of_shard(shard: int) -> Callable[[str], PartResult]:
        return lambda staging: compute(shard, staging)

    return [shard for shard in shards if publish_part(work.prepared, work.run, part(shard), of_shard(shard))]


def finish_stage(runs: str, capture: str, name: str, key: str, phase: str = ROWS) -> bool:
    """Combine the parts of this phase and publish the result; True if done here and now.

    Raises IncompleteRun, and marks the stage partial, where shards are missing.
    """
    if phase == SURVEY and not stage(name).surveys:
        return False
    work = _StageWork.open(runs, capture, name, key)
    prepared, run = work.prepared, work.run
    if left := _left(prepared, name, key, phase):
        mark(prepared, run, "partial")
        raise _incomplete(prepared, name, phase, left)
    if phase == SURVEY:
        return publish_part(prepared, run, layout.SURVEY, work.combine_surveys)
    done = publish_part(prepared, run, layout.FINAL, work.finish)
    mark(prepared, run, "done")
    forget(prepared, name, key)
    return done


def _incomplete(prepared: CaptureFolder, name: str, phase: str, left: Sequence[int]) -> IncompleteRun:
    of = "the survey of " if phase == SURVEY else ""
    named = f"{', '.join(map(str, left[:8]))}{' …' if len(left) > 8 else ''}"
    return IncompleteRun(
        f"{of}every shard of stage {name}",
        got=f"{len(left)} of {prepared.n_shards} missing ({named})" if left else "its parts, not combined",
        where=f"capture {prepared.layout.capture}",
        remedy=RESUME,
    )


@dataclass(frozen=True)
class _StageWork:
    """One stage run, opened: what every part of it needs."""

    prepared: CaptureFolder
    stage: Stage
    run: StageRun
    parameters: Any
    store: ActivationStore

    @classmethod
    def open(cls, runs: str, capture: str, name: str, key: str) -> Self:
        prepared, declared = CaptureFolder.open(runs, capture), stage(name)
        run = StageRun.read(prepared, name, key)
        parameters = stage_parameters(declared, run.parameters)
        return cls(prepared, declared, run, parameters, open_store(prepared, declared))

    def context(self, kind: str, **more: Any) -> StageContext:
        """What a step may know; `kind` names the work in the progress."""
        advance = progress_of(self.stage, kind, len(self.store.shape.kept_layers))
        prepared = self.prepared
        return StageContext(self.run.key, self.run.seed, advance, n_shards=prepared.n_shards, prepared=prepared, **more)

    def surveyor(self) -> Callable[[int, str], PartResult]:
        """(shard, staging) → the survey of one shard."""

        def compute(shard: int, staging: str) -> PartResult:
            context, work = self.context(survey_name(self.stage.name)), PartResult()
            found = self.stage.steps.survey(self.store, self.store.shard(shard), self.parameters, context)
            keep_partial(self.prepared, self.run, layout.survey_part(shard), found, staging, work)
            return work

        return compute

    def rows_of_shards(self, replay: CapturedReplay | None) -> Callable[[int, str], PartResult]:
        """(shard, staging) → the rows of one shard, and its partial."""
        survey = self.survey()

        def compute(shard: int, staging: str) -> PartResult:
            part, rows = layout.shard_part(shard), self._rows(staging)
            once = Checkpoints(self.prepared, self.run.stage, self.run.key, part, staging).once
            context = self.context(self.stage.name, replay=replay, once=once, survey=survey)
            shard_steps = self.stage.steps.per_shard
            partial, quality = shard_steps(self.store, self.store.shard(shard), self.parameters, context, rows)
            work = PartResult(quality=quality)
            rows.close(work, self.prepared.layout, self.run.key, part)
            keep_partial(self.prepared, self.run, part, partial, staging, work)
            return work

        return compute

    def combine_surveys(self, staging: str) -> PartResult:
        """The surveys of all shards as one."""
        work = PartResult()
        combined = reduce(self.stage.steps.combine_survey, self._partials(SURVEY))
        keep_partial(self.prepared, self.run, layout.SURVEY, combined, staging, work)
        return work

    def finish(self, staging: str) -> PartResult:
        """Rows and counts over the whole capture, where the stage has any."""
        steps, rows, work = self.stage.steps, self._rows(staging), PartResult()
        combined = reduce(steps.combine, self._partials(ROWS)) if hasattr(steps, "combine") else {}
        if hasattr(steps, "finish"):
            context = self.context(self.stage.name, survey=self.survey())
            work.quality = steps.finish(self.store, combined, self.parameters, context, rows)
        rows.close(work, self.prepared.layout, self.run.key, layout.FINAL)
        return work

    def survey(self) -> Partial | None:
        """The combined survey of all shards; None of a stage without one. Raises IncompleteRun, DamagedPart."""
        if not self.stage.surveys:
            return None
        prepared, run = self.prepared, self.run
        if prepared.manifest.published(prepared.layout.part_record(run.stage, run.key, layout.SURVEY)) is None:
            raise _incomplete(prepared, run.stage, SURVEY, _left(prepared, run.stage, run.key, SURVEY))
        return read_partial(prepared, run, layout.SURVEY)

    def _partials(self, phase: str) -> Iterator[Partial]:
        return (read_partial(self.prepared, self.run, part) for part in _parts(self.prepared, phase))

    def _rows(self, staging: str) -> PartRows:
        return PartRows(self.prepared.fs, staging, self.stage, self.prepared.layout.capture, self.run.key)


def survey_name(name: str) -> str:
    """What the progress calls the survey of a stage."""
    return f"{name}: survey"


def stage_units(runs: str, capture: str, name: str, key: str, shards: Sequence[int], phase: str = ROWS) -> int:
    """How many units of progress these shards are: documents, or the stage's own units.

    Raises what reading the stage's files raises.
    """
    prepared, declared = CaptureFolder.open(runs, capture), stage(name)
    if declared.count_units is None or phase == SURVEY:
        return sum(len(prepared.record["shards"][shard]) for shard in shards)
    run = StageRun.read(prepared, name, key)
    return declared.count_units(stage_parameters(declared, run.parameters), shards, prepared.n_shards)


def phase_unit(name: str, phase: str) -> tuple[str, str]:
    """(what the progress calls this phase, its unit)."""
    return (survey_name(name), DOCUMENTS) if phase == SURVEY else (name, stage(name).unit)
