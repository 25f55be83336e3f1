"""The captures in a folder of runs: which one is meant, and how far each of them and of their stages is."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.outcome import last_run
from storage.errors import ForeignStore, MissingPart, UnknownName
from storage.filesystem import Filesystem, open_runs
from storage.layout import Layout
from storage.manifest import Manifest, list_captures
from storage.numbers import counted
from tasks.capture.finish import CAPTURE
from tasks.capture.folder import CaptureFolder
from tasks.stages.registry import stages
from tasks.stages.run import stage_parts_left

_CHOSEN = ("layers", "heads", "positions", "keep")
"""What a capture may keep a part of; all where nothing is said."""


@dataclass(frozen=True)
class Standing:
    """How far the capture, or one run of a stage of it, is."""

    capture: str
    stage: str
    key: str
    status: str
    """done, partial, or stale: done or begun with a key that is no longer the one asked for."""
    shards_done: int
    shards_total: int
    last_run: dict[str, Any] | None
    """What its last run found done: shards, reused, at."""


def pick_capture(runs: str, capture: str | None) -> str:
    """The capture of that id, or the only one whose id begins so; None is the one asked for last.

    UnknownName names the nearest, or all that begin so; MissingPart if there is none.
    """
    fs = open_runs(runs)
    known = list_captures(fs)
    if capture is not None:
        return _named(fs, known, capture)
    if not known:
        raise MissingPart(
            "a capture", got="none", where=fs.where, remedy="Run `theodolite run` or `theodolite capture` first."
        )
    return known[0] if len(known) == 1 else max(known, key=lambda name: _asked(fs, name))


def nothing_captured(runs: str) -> str:
    """What to print of a folder of runs without a capture: which folder, and which one nearby has captures."""
    fs, here = open_runs(runs), Path(runs).absolute()
    nearby = [here.parent, *(here / child for child in fs.children(""))]
    having = [str(place) for place in nearby if place.is_dir() and list_captures(open_runs(str(place)))]
    if having:
        return f"Nothing is captured in {fs.where}. Did you mean --runs {having[0]}?"
    return f"Nothing is captured in {fs.where}. `theodolite run` captures and measures; --runs names another folder."


def _named(fs: Filesystem, known: Sequence[str], capture: str) -> str:
    begin_so = [name for name in known if capture and name.startswith(capture)]
    if capture in known or len(begin_so) == 1:
        return capture if capture in known else begin_so[0]
    if begin_so:
        raise UnknownName(
            "the beginning of one capture's id",
            got=f"'{capture}', with which {len(begin_so)} begin",
            where=fs.where,
            remedy=f"They are: {', '.join(begin_so)}.",
        )
    raise UnknownName.among("capture", capture, known, where=fs.where)


def described(runs: str, capture: str) -> str:
    """What a capture's hash stands for, as one line: model, corpus, and what is not as usual."""
    record = CaptureFolder.open(runs, capture).record
    chosen = record["settings"]
    usual = {"dtype": "float32", "store_dtype": "float32", "stride": chosen.get("window"), **dict.fromkeys(_CHOSEN)}
    told = [f"{chosen.get('model')} over {', '.join(chosen.get('corpus') or ())}", f"window {chosen.get('window')}"]
    told += [counted(len(record["lengths"]), "document"), f"attention {chosen.get('attention')}"]
    told += [f"{name} {chosen[name]}" for name, value in usual.items() if chosen.get(name, value) != value]
    return ", ".join(told)


def _asked(fs: Filesystem, capture: str) -> tuple[str, str]:
    """When the capture was asked for last, and its name. A damaged record is for `verify` to tell: it counts as old."""
    manifest, asked = Manifest(fs, Layout(capture)), ""
    with suppress(ForeignStore, MissingPart, KeyError):
        record = manifest.read_capture()
        asked = str(record.get("created_at", ""))
        asked = manifest.read_stage(CAPTURE, record["key"])["requested_at"]
    return asked, capture


def standings(runs: str, captures: list[str]) -> list[Standing]:
    """How far each capture and each run of its stages is, the capture itself first."""
    return [standing for capture in captures for standing in _standings(runs, capture)]


def _standings(runs: str, capture: str) -> list[Standing]:
    prepared = CaptureFolder.open(runs, capture)
    stage_runs = prepared.manifest.stage_runs()
    latest = {run["stage"]: run["key"] for run in sorted(stage_runs, key=lambda run: run["requested_at"])}
    left = len(prepared.shards_left())
    found = [_standing(runs, prepared, {"stage": CAPTURE, "key": prepared.record["key"]}, left, current=True)]
    for run in sorted(stage_runs, key=lambda run: (run["stage"], run["requested_at"])):
        if run["stage"] != CAPTURE:
            left = len(stage_parts_left(runs, capture, run["stage"], run["key"]))
            current = latest[run["stage"]] == run["key"] and _is_of_this_version(run)
            found.append(_standing(runs, prepared, run, left, current=current))
    return found


def _standing(runs: str, prepared: CaptureFolder, run: dict[str, Any], left: int, *, current: bool) -> Standing:
    total, capture = prepared.n_shards, prepared.layout.capture
    finished = prepared.manifest.published(prepared.layout.part_record(run["stage"], run["key"], "final")) is not None
    status = ("done" if finished and not left else "partial") if current else "stale"
    told = last_run(runs, capture, run["stage"]) if current else None
    return Standing(capture, run["stage"], run["key"], status, total - left, total, told)


def _is_of_this_version(run: dict[str, Any]) -> bool:
    declared = stages().get(run["stage"])
    return declared is not None and declared.version == run["version"]
