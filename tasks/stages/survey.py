"""The survey of a stage that must know all shards before any of them has rows, as an order of all heads must.

A reduction of its own, from the store alone: a part for each shard, combined in shard order to one more, each done
once by the rule of all parts. They hold arrays and no rows, so no table, and no count of shards, knows of them.
"""

from __future__ import annotations

from functools import partial as bind
from functools import reduce
from typing import TYPE_CHECKING

from storage.errors import IncompleteRun
from storage.layout import SURVEY, survey_part
from tasks.capture.folder import Prepared
from tasks.run_record import StageRun, mark
from tasks.shard import Work
from tasks.stages.parameters import stage_parameters
from tasks.stages.parts import (
    keep_partial,
    of_capture,
    open_store,
    publish_part,
    read_partial,
    require_files,
    stage_context,
)
from tasks.stages.registry import Stage, stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from storage.tensors import ActivationStore
    from tasks.stages.registry import Partial


def survey_name(name: str) -> str:
    """What the progress calls the survey of the stage `name`."""
    return f"{name}: survey"


def survey_parts_left(runs: str, capture: str, name: str, key: str) -> list[int]:
    """The shards that are not surveyed yet; none of a stage that surveys nothing."""
    prepared = Prepared.open(runs, capture)
    return _left(prepared, name, key) if stage(name).surveys else []


def _left(prepared: Prepared, name: str, key: str) -> list[int]:
    layout, manifest = prepared.layout, prepared.manifest
    paths = [layout.part_record(name, key, survey_part(shard)) for shard in range(prepared.n_shards)]
    return [shard for shard, path in enumerate(paths) if manifest.published(path) is None]


def survey_shards(runs: str, capture: str, name: str, key: str, shards: Sequence[int]) -> list[int]:
    """Survey these shards, on one thread whatever the machine; returns those that were done here and now."""
    import torch

    torch.set_num_threads(1)
    prepared, declared = Prepared.open(runs, capture), stage(name)
    run, store = StageRun.read(prepared, name, key), open_store(prepared, declared)
    require_files(prepared, declared, run)
    done = []
    for shard in shards:
        compute = bind(_surveyed, prepared, declared, run, store, shard)
        if publish_part(prepared, run, survey_part(shard), compute):
            done.append(shard)
    return done


def _surveyed(
    prepared: Prepared, declared: Stage, run: StageRun, store: ActivationStore, shard: int, staging: str
) -> Work:
    context = stage_context(declared, run, store, survey_name(run.stage), **of_capture(prepared))
    parameters, work = stage_parameters(declared, run.parameters), Work()
    found = declared.survey_steps().survey(store, store.shard(shard), parameters, context)
    keep_partial(prepared, run, survey_part(shard), found, staging, work)
    return work


def finish_survey(runs: str, capture: str, name: str, key: str) -> bool:
    """Combine what the shards gave; True if done here and now, False of a stage that surveys nothing too.

    Raises IncompleteRun, and marks the stage partial, where shards are missing.
    """
    prepared, declared = Prepared.open(runs, capture), stage(name)
    if not declared.surveys:
        return False
    run = StageRun.read(prepared, name, key)
    if left := _left(prepared, name, key):
        mark(prepared, run, "partial")
        raise _incomplete(prepared, name, len(left))
    return publish_part(prepared, run, SURVEY, bind(_combined, prepared, declared, run))


def _combined(prepared: Prepared, declared: Stage, run: StageRun, staging: str) -> Work:
    work = Work()
    of_shards = (read_partial(prepared, run, survey_part(shard)) for shard in range(prepared.n_shards))
    keep_partial(prepared, run, SURVEY, reduce(declared.survey_steps().combine_survey, of_shards), staging, work)
    return work


def read_survey(prepared: Prepared, declared: Stage, run: StageRun) -> Partial | None:
    """What was found over all shards; None of a stage that surveys nothing.

    Raises IncompleteRun where the survey is not done, DamagedPart where it is not what was written.
    """
    if not declared.surveys:
        return None
    if prepared.manifest.published(prepared.layout.part_record(run.stage, run.key, SURVEY)) is None:
        raise _incomplete(prepared, run.stage, len(_left(prepared, run.stage, run.key)))
    return read_partial(prepared, run, SURVEY)


def _incomplete(prepared: Prepared, name: str, left: int) -> IncompleteRun:
    return IncompleteRun(
        f"the survey of all {prepared.n_shards} shards of stage {name}",
        got=f"{left} missing" if left else "its parts, not combined",
        where=f"capture {prepared.layout.capture}",
        remedy="What is done is kept; run the same command again to do the rest.",
    )
