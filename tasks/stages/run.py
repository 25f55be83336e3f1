"""One stage of one capture: what is left to do, its shards, and what is combined from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial as bind
from functools import reduce
from typing import TYPE_CHECKING, Any

from storage.errors import IncompleteRun
from storage.layout import FINAL, Layout, shard_part
from storage.tables import PartWriter
from tasks.capture.folder import Prepared
from tasks.capture.kept import Chosen
from tasks.capture.key import stage_key
from tasks.run_record import StageRun, mark, request
from tasks.shard import Work
from tasks.stages.checkpoints import Checkpoints, forget
from tasks.stages.parameters import stage_parameters
from tasks.stages.parts import (
    keep_partial,
    of_capture,
    open_store,
    publish_part,
    read_partial,
    require_files,
    require_kinds,
    stage_context,
)
from tasks.stages.registry import Stage, stage
from tasks.stages.survey import read_survey

if TYPE_CHECKING:
    from storage.filesystem import Filesystem
    from storage.tensors import ActivationStore
    from tasks.replay import CapturedReplay
    from tasks.stages.registry import Partial


class _PartRows:
    """The rows of one part: a Parquet file per table, opened when its first rows come."""

    def __init__(self, fs: Filesystem, staging: str, stage: Stage, capture: str, key: str) -> None:
        self._open = bind(self._open_writer, fs, staging, {t.name: t for t in stage.tables}, capture, key)
        self._writers: dict[str, PartWriter] = {}

    @staticmethod
    def _open_writer(
        fs: Filesystem, staging: str, specs: Mapping[str, Any], capture: str, key: str, table: str
    ) -> PartWriter:
        return PartWriter(fs, f"{staging}/{table}.parquet", specs[table], {"capture": capture, "stage_key": key})

    def add(self, table: str, columns: Mapping[str, Any]) -> None:
        if table not in self._writers:
            self._writers[table] = self._open(table)
        self._writers[table].add(columns)

    def close(self, work: Work, layout: Layout, key: str, part: str) -> None:
        """Close every file and hand it to the part's work."""
        for name, writer in self._writers.items():
            record, rows = writer.close()
            work.add_file(writer.path, layout.table_part(name, key, part), record)
            work.rows[name] = rows


def prepare_stage(runs: str, capture: str, name: str, overrides: Mapping[str, Any], seed: int = 0) -> str:
    """Write down what is to be done and return its key; it is the stage's current key from now on.

    Raises UnknownName or UsageError for a stage, parameter or store that does not fit, and CorpusError for a text that
    the model cannot be given, before anything runs.
    """
    prepared, declared = Prepared.open(runs, capture), stage(name)
    parameters = stage_parameters(declared, overrides)
    require_captured(runs, capture, name)
    if declared.fits is not None:
        declared.fits(parameters, open_store(prepared, declared).shape)
    if declared.suits is not None:
        declared.suits(parameters, open_store(prepared, declared).shape, prepared.record["lengths"])
    key = stage_key(declared, parameters, prepared.record["key"], seed)
    if declared.needs_model and stage_parts_left(runs, capture, name, key):
        replay = open_replay(runs, capture)  # what is refused here is before this run stands in an older one's place
        if declared.reads_texts:
            declared.text_steps().require_fitting(parameters, replay)
    request(prepared, StageRun(name, key, declared.version, declared.describe(parameters), seed))
    return key


def stage_parts_left(runs: str, capture: str, name: str, key: str) -> list[int]:
    """The shards whose part of the stage is not published yet."""
    prepared = Prepared.open(runs, capture)
    layout, manifest = prepared.layout, prepared.manifest
    paths = [layout.part_record(name, key, shard_part(shard)) for shard in range(prepared.n_shards)]
    return [shard for shard, path in enumerate(paths) if manifest.published(path) is None]


def stage_units(runs: str, capture: str, name: str, key: str, shards: Sequence[int]) -> int:
    """How many units these shards are: documents, or what the stage counts. Raises what reading its files raises."""
    prepared, declared = Prepared.open(runs, capture), stage(name)
    if declared.units is None:
        return documents_in(prepared, shards)
    run = StageRun.read(prepared, name, key)
    return declared.units(stage_parameters(declared, run.parameters), shards, prepared.n_shards)


def documents_in(prepared: Prepared, shards: Sequence[int]) -> int:
    """How many documents these shards are, which a survey counts whatever its stage counts."""
    return sum(len(prepared.record["shards"][shard]) for shard in shards)


def require_captured(runs: str, capture: str, name: str) -> None:
    """UsageError unless a capture that is there was asked to keep what the stage reads; opens no store."""
    chosen = Chosen.of(Prepared.open(runs, capture).settings)
    require_kinds(stage(name), chosen.offered(), f"capture {capture}")


def run_stage_shards(runs: str, capture: str, name: str, key: str, shards: Sequence[int]) -> list[int]:
    """Do the stage's part of these shards; returns those that were done here and now.

    What reads the store alone runs on one thread whatever the machine, so that the same key gives the same bytes with
    any number of workers. A replay takes the threads there are, as the capture did.
    """
    import torch

    prepared, declared = Prepared.open(runs, capture), stage(name)
    replay = open_replay(runs, capture) if declared.needs_model else None
    if replay is None:
        torch.set_num_threads(1)
    run = StageRun.read(prepared, name, key)
    store = open_store(prepared, declared)
    require_files(prepared, declared, run)
    survey = read_survey(prepared, declared, run)
    done = []
    for shard in shards:
        compute = bind(_shard_part, prepared, declared, run, store, replay, survey, shard)
        if publish_part(prepared, run, shard_part(shard), compute):
            done.append(shard)
    return done


def open_replay(runs: str, capture: str) -> CapturedReplay:
    """The captured model, loaded and ready to run again.

    Raises ForeignStore where its files are not those that were captured, ModelError or UsageError where it, or the
    store, cannot be replayed: what every shard would meet.
    """
    from tasks.replay import CapturedReplay

    replay = CapturedReplay.open(runs, capture)
    _ = replay.replayer
    return replay


def _shard_part(
    prepared: Prepared,
    declared: Stage,
    run: StageRun,
    store: ActivationStore,
    replay: CapturedReplay | None,
    survey: Partial | None,
    shard: int,
    staging: str,
) -> Work:
    parameters = stage_parameters(declared, run.parameters)
    rows = _PartRows(prepared.fs, staging, declared, prepared.layout.capture, run.key)
    checkpoints = Checkpoints(prepared, run.stage, run.key, shard_part(shard), staging)
    context = stage_context(
        declared, run, store, replay=replay, once=checkpoints.once, survey=survey, **of_capture(prepared)
    )
    partial, quality = declared.steps().per_shard(store, store.shard(shard), parameters, context, rows)
    work = Work(quality=quality)
    rows.close(work, prepared.layout, run.key, shard_part(shard))
    keep_partial(prepared, run, shard_part(shard), partial, staging, work)
    return work


def finish_stage(runs: str, capture: str, name: str, key: str) -> bool:
    """Combine the shards' partials and publish what is over the whole capture; True if done here and now.

    Raises IncompleteRun, and marks the stage partial, where shards are missing.
    """
    from storage.tensors import ActivationStore

    prepared, declared = Prepared.open(runs, capture), stage(name)
    run = StageRun.read(prepared, name, key)
    left = stage_parts_left(runs, capture, name, key)
    if left:
        mark(prepared, run, "partial")
        raise IncompleteRun(
            f"all {prepared.n_shards} shards of stage {name}",
            got=f"{len(left)} missing (shards {', '.join(map(str, left[:8]))}{' …' if len(left) > 8 else ''})",
            where=f"capture {capture}",
            remedy="What is done is kept; run the same command again to do the rest.",
        )
    store = ActivationStore.open(prepared.fs, capture)
    done = publish_part(prepared, run, FINAL, bind(_final_part, prepared, declared, run, store))
    mark(prepared, run, "done")
    forget(prepared, name, key)
    return done


def _final_part(prepared: Prepared, declared: Stage, run: StageRun, store: ActivationStore, staging: str) -> Work:
    fs, layout, steps = prepared.fs, prepared.layout, declared.steps()
    partials = (read_partial(prepared, run, shard_part(shard)) for shard in range(prepared.n_shards))
    combined = reduce(steps.combine, partials)
    rows = _PartRows(fs, staging, declared, layout.capture, run.key)
    parameters = stage_parameters(declared, run.parameters)
    survey = read_survey(prepared, declared, run)
    context = stage_context(declared, run, store, survey=survey, **of_capture(prepared))
    work = Work(quality=steps.finish(store, combined, parameters, context, rows))
    rows.close(work, layout, run.key, FINAL)
    return work
