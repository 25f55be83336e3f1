"""What a run did and what it found done: told at its end, and kept for `theodolite status`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from storage.errors import MissingPart
from storage.filesystem import open_runs
from storage.layout import Layout
from storage.numbers import counted
from storage.warehouse import CheckResult, save_catalog
from tasks.stages.registry import tables


@dataclass(frozen=True)
class StageDone:
    """The capture or one stage as this run met it: how many of its shards were reused, how many done now."""

    name: str
    shards: int
    reused: int

    def told(self) -> str:
        """'capture: 12 of 12 shards reused', or what was done."""
        if self.reused:
            return f"{self.name}: {self.reused:,} of {counted(self.shards, 'shard')} reused"
        return f"{self.name}: {counted(self.shards, 'shard')} done"


@dataclass(frozen=True)
class Outcome:
    """The result of a flow: the capture's id, the work in the order in which it was met, and the checks that hold."""

    capture: str
    work: tuple[StageDone, ...]
    checks: tuple[CheckResult, ...] = ()


def remember(runs: str, capture: str, work: StageDone) -> None:
    """Keep what this run reused, and save the catalog, so that both say how things are now."""
    fs = open_runs(runs)
    record = {**asdict(work), "at": datetime.now(UTC).isoformat(timespec="seconds")}
    fs.write_bytes(Layout(capture).last_run(work.name), (json.dumps(record, sort_keys=True) + "\n").encode())
    save_catalog(fs, tables())


def last_run(runs: str, capture: str, name: str) -> dict[str, Any] | None:
    """What the last run of the capture, or of this stage of it, did and reused; None before the first ended.

    It is a note beside the manifest: one that cannot be read tells nothing, and the next run writes it anew.
    """
    fs, path = open_runs(runs), Layout(capture).last_run(name)
    try:
        record = json.loads(fs.read_bytes(path))
    except (MissingPart, ValueError):
        return None
    return record if isinstance(record, dict) and {"shards", "reused"} <= set(record) else None
