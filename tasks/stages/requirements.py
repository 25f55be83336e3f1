"""What a stage requires of a capture: kinds of tensor, whole heads and positions, unchanged files, its model."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from storage.errors import CorpusError, UsageError
from storage.kept import ALL_HEADS, ALL_POSITIONS
from tasks.capture.folder import CaptureFolder
from tasks.capture.kept import offered_by
from tasks.run_record import StageRun
from tasks.stages.contract import Stage
from tasks.stages.key import stage_key
from tasks.stages.parameters import stage_parameters

if TYPE_CHECKING:
    from storage.tensors import ActivationStore
    from tasks.replay import CapturedReplay


def require_kinds(declared: Stage, offered: Collection[str], where: str) -> None:
    """UsageError, naming what is lacking and how to keep it, unless everything that the stage reads is offered.

    offered: kinds of tensor, and what the store holds whole (`Kept.whole`).
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


def require_captured(prepared: CaptureFolder, declared: Stage) -> None:
    """UsageError unless the capture was asked to keep what the stage reads; opens no store."""
    require_kinds(declared, offered_by(prepared.settings), f"capture {prepared.layout.capture}")


def open_store(prepared: CaptureFolder, declared: Stage) -> ActivationStore:
    """The capture's store. UsageError unless it holds what the stage reads, and what opening it raises."""
    from storage.tensors import ActivationStore

    capture = prepared.layout.capture
    store = ActivationStore.open(prepared.fs, capture)
    require_kinds(declared, store.shape.offered | store.shape.stored.whole, f"capture {capture}")
    return store


def require_files(prepared: CaptureFolder, declared: Stage, run: StageRun) -> None:
    """CorpusError where the files that the parameters name are not those that the run's key was made of."""
    if declared.key_of_files is None:
        return
    now = stage_key(declared, stage_parameters(declared, run.parameters), prepared.record["key"], run.seed)
    if now != run.key:
        raise CorpusError(
            "the files that the stage was begun with",
            got="files that changed since",
            where=f"{prepared.layout.capture}, stage {declared.name}",
            remedy="Run the stage again, which begins anew with the files as they are.",
        )


def open_replay(runs: str, capture: str) -> CapturedReplay:
    """The captured model, loaded and ready to run again.

    Raises ForeignStore where its files are not those that were captured, ModelError or UsageError where it, or the
    store, cannot be replayed: what every shard would meet.
    """
    from tasks.replay import CapturedReplay

    replay = CapturedReplay.open(runs, capture)
    _ = replay.replayer
    return replay
