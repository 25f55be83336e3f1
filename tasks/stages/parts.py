"""What the parts of a stage have in common: what the store must hold, what a stage may know, parts and their arrays."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial as bind
from typing import TYPE_CHECKING, Any

from storage.arrays import read_arrays, write_arrays
from storage.errors import CorpusError, UsageError
from storage.kept_parts import ALL_HEADS, ALL_POSITIONS
from tasks.capture.folder import Prepared
from tasks.capture.key import stage_key
from tasks.progress import Progress, emit, waits
from tasks.run_record import StageRun
from tasks.shard import Work, publish_once
from tasks.stages.parameters import stage_parameters
from tasks.stages.registry import DOCUMENTS, Stage, StageContext

if TYPE_CHECKING:
    from storage.tensors import ActivationStore
    from tasks.stages.registry import Partial


def require_kinds(declared: Stage, offered: Collection[str], where: str) -> None:
    """UsageError, naming what is lacking and how to keep it, unless everything that the stage reads is offered.

    offered: kinds of tensor, and what the store holds whole (`ChosenParts.whole`).
    """
    needed = sorted(declared.reads | declared.whole)
    missing = [name for name in needed if name not in offered]
    if missing:
        raise UsageError(
            f"a store with {', '.join(needed)}",
            got=f"one without {', '.join(missing)}",
            where=f"{where}, stage {declared.name}",
            remedy=_remedy(missing),
        )


def _remedy(missing: Sequence[str]) -> str:
    """How to capture what a store lacks."""
    options = {
        "attention": "--attention stored or rebuilt",
        "sink_mass": "--attention stored or rebuilt",
        ALL_HEADS: "no --heads",
        ALL_POSITIONS: "no --positions",
    }
    needed = dict.fromkeys(options.get(kind, f"--keep with {kind}") for kind in missing)
    return f"Capture again with what the stage reads: {', '.join(needed)}."


def open_store(prepared: Prepared, declared: Stage) -> ActivationStore:
    """The capture's store. UsageError unless it holds what the stage reads, and what opening it raises."""
    from storage.tensors import ActivationStore

    capture = prepared.layout.capture
    store = ActivationStore.open(prepared.fs, capture)
    require_kinds(declared, store.shape.offered | store.shape.parts.whole, f"capture {capture}")
    return store


def require_files(prepared: Prepared, declared: Stage, run: StageRun) -> None:
    """CorpusError where the files that the parameters name are not those that the run's key was made of."""
    if declared.identity is None:
        return
    now = stage_key(declared, stage_parameters(declared, run.parameters), prepared.record["key"], run.seed)
    if now != run.key:
        raise CorpusError(
            "the files that the stage was begun with",
            got="files that changed since",
            where=f"{prepared.layout.capture}, stage {declared.name}",
            remedy="Run the stage again, which begins anew with the files as they are.",
        )


def stage_context(
    declared: Stage, run: StageRun, store: ActivationStore, kind: str | None = None, **more: Any
) -> StageContext:
    """What a stage may know; `kind` names the work in the progress, the stage by default: a survey, which counts
    documents whatever the stage counts."""
    by_document = declared.units is None or kind is not None
    of_unit = len(store.shape.kept_layers) if by_document else 1

    def advance(done: float, restored: bool = False) -> None:
        emit(Progress(kind or run.stage, done / of_unit, DOCUMENTS if by_document else declared.unit, restored))

    return StageContext(run.key, run.seed, advance, **more)


def of_capture(prepared: Prepared) -> dict[str, Any]:
    """What a stage may know of the capture beside its store."""
    return {"prepared": prepared, "n_shards": prepared.n_shards}


def publish_part(prepared: Prepared, run: StageRun, part: str, compute: Callable[[str], Work]) -> bool:
    """Do a part of the stage unless it is done; True if it was done here and now."""
    layout = prepared.layout
    name = f"{run.stage}-{run.key[:16]}-{part}"
    record, wait = layout.part_record(run.stage, run.key, part), bind(waits, run.stage, f"part {part}")
    return publish_once(prepared.fs, layout, record, name, compute, wait)


def keep_partial(prepared: Prepared, run: StageRun, part: str, partial: Partial, staging: str, work: Work) -> None:
    """Add the arrays that a part leaves to its work."""
    staged = f"{staging}/partial.safetensors"
    path = prepared.layout.partial(run.stage, run.key, part)
    work.add_file(staged, path, write_arrays(prepared.fs, staged, partial))


def read_partial(prepared: Prepared, run: StageRun, part: str) -> Partial:
    """The arrays that a part left, checked against its record: damaged ones must not reach the totals."""
    layout, path = prepared.layout, prepared.layout.partial(run.stage, run.key, part)
    record = prepared.manifest.read_part(layout.part_record(run.stage, run.key, part))
    return read_arrays(prepared.fs, path, record.files[path])
