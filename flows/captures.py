"""The captures in a folder of runs: which one is meant, and how far each of them and of their stages is."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from flows.outcome import last_run
from storage.errors import ForeignStore, MissingPart, UnknownName
from storage.filesystem import Filesystem, open_runs
from storage.layout import Layout
from storage.manifest import Manifest, list_captures
from tasks.capture_finish import CAPTURE
from tasks.prepared import Prepared
from tasks.registry import stages
from tasks.stage import stage_parts_left


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
    """The capture of that id, or the one asked for last; UnknownName with the nearest, MissingPart if there is none."""
    fs = open_runs(runs)
    known = list_captures(fs)
    if capture is not None and capture not in known:
        raise UnknownName.among("capture", capture, known, where=fs.where)
    if not known:
        raise MissingPart(
            "a capture", got="none", where=fs.where, remedy="Run `theodolite run` or `theodolite capture` first."
        )
    if capture is not None or len(known) == 1:
        return capture or known[0]
    return max(known, key=lambda name: _asked(fs, name))


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
    prepared = Prepared.open(runs, capture)
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


def _standing(runs: str, prepared: Prepared, run: dict[str, Any], left: int, *, current: bool) -> Standing:
    total, capture = prepared.n_shards, prepared.layout.capture
    finished = prepared.manifest.published(prepared.layout.part_record(run["stage"], run["key"], "final")) is not None
    status = ("done" if finished and not left else "partial") if current else "stale"
    told = last_run(runs, capture, run["stage"]) if current else None
    return Standing(capture, run["stage"], run["key"], status, total - left, total, told)


def _is_of_this_version(run: dict[str, Any]) -> bool:
    declared = stages().get(run["stage"])
    return declared is not None and declared.version == run["version"]
