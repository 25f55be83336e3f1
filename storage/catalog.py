"""What tables there are to ask: every published part of every table, read from the manifests and from nothing else."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from storage.errors import DamagedPart, ForeignStore, MissingPart, StoreError
from storage.filesystem import Filesystem
from storage.layout import Layout
from storage.manifest import Manifest, list_captures
from storage.tables import TableSpec

STAGES_TABLE = "stages"
"""The table whose rows are the runs themselves: one small file per run, which no part record names."""

_PATIENCE_S, _POLL_S = 0.5, 0.05


@dataclass(frozen=True)
class Run:
    """One run of a stage over a capture; `current` if no other key of that stage was asked for later."""

    capture: str
    stage: str
    key: str
    version: int
    current: bool


@dataclass(frozen=True)
class TablePart:
    """One Parquet file of a table, as its record describes it."""

    table: str
    run: Run
    path: str
    """Relative to WHERE."""
    rows: int
    size: int | None
    """Bytes; None for the files of the table `stages`, which are rewritten whenever a status changes."""
    problem: StoreError | None = None
    """Why it cannot be read, where that is known."""


@dataclass(frozen=True)
class Catalog:
    """The parts of every table, and the runs that they belong to."""

    runs: tuple[Run, ...]
    parts: Mapping[str, tuple[TablePart, ...]]

    def counts(self) -> dict[str, int]:
        """Rows of the current runs per table, as the manifest states them: no file is opened."""
        return {
            table: sum(part.rows for part in parts if part.run.current or table == STAGES_TABLE)
            for table, parts in self.parts.items()
        }


def read_catalog(fs: Filesystem, specs: Mapping[str, TableSpec]) -> Catalog:
    """The catalog of a folder of runs. A part that is lost or cut short is in it, with its problem.

    Raises ForeignStore where a record is damaged or of a newer format.
    """
    runs: list[Run] = []
    parts: dict[str, list[TablePart]] = {name: [] for name in specs}
    for capture in list_captures(fs):
        manifest = Manifest(fs, Layout(capture))
        for run in _runs(capture, manifest.stage_runs()):
            runs.append(run)
            for part in _parts(fs, manifest, run):
                if part.table in parts:
                    parts[part.table].append(part)
    return Catalog(tuple(runs), {name: _with_problems(fs, found) for name, found in parts.items()})


def _runs(capture: str, records: list[dict[str, Any]]) -> list[Run]:
    latest: dict[str, tuple[str, str]] = {}
    for record in records:
        asked = (record["requested_at"], record["key"])
        latest[record["stage"]] = max(latest.get(record["stage"], asked), asked)
    return [
        Run(capture, r["stage"], r["key"], r["version"], current=latest[r["stage"]][1] == r["key"]) for r in records
    ]


def _parts(fs: Filesystem, manifest: Manifest, run: Run) -> Iterator[TablePart]:
    layout = manifest.layout
    yield TablePart(STAGES_TABLE, run, layout.stages_table(run.stage, run.key), rows=1, size=None)
    for name in fs.children(layout.stage_folder(run.stage, run.key)):
        if not name.startswith("part-"):
            continue
        part = name.removeprefix("part-").removesuffix(".json")
        record_path = layout.part_record(run.stage, run.key, part)
        record = manifest.read_part(record_path)
        for table, rows in record.rows.items():
            path = layout.table_part(table, run.key, part)
            if path not in record.files:
                raise ForeignStore(
                    f"a record that names {path}", got=f"rows of {table} without a file", where=fs.absolute(record_path)
                )
            yield TablePart(table, run, path, rows, record.files[path].size)


def _with_problems(fs: Filesystem, parts: list[TablePart]) -> tuple[TablePart, ...]:
    """Each part with what is wrong with its file. A part that another process is putting in place is waited for."""
    given_up = time.monotonic() + _PATIENCE_S
    checked = [replace(part, problem=find_problem(fs, part)) for part in parts]
    while any(p.problem for p in checked) and time.monotonic() < given_up:
        time.sleep(_POLL_S)
        checked = [replace(p, problem=find_problem(fs, p)) if p.problem else p for p in checked]
    return tuple(checked)


def find_problem(fs: Filesystem, part: TablePart) -> StoreError | None:
    """MissingPart if the part's file is not there, DamagedPart if it has another size than its record says."""
    try:
        size = fs.size(part.path)
    except MissingPart:
        return lost(fs, part)
    if part.size is not None and size != part.size:
        return damaged(fs, part, f"{size:,} bytes", expected=f"a part of {part.size:,} bytes")
    return None


def lost(fs: Filesystem, part: TablePart) -> MissingPart:
    """The error of a part whose file is not there."""
    return MissingPart(
        f"the part of {part.table} that the manifest names",
        got="no file",
        where=fs.absolute(part.path),
        remedy=_remedy(part),
    )


def damaged(fs: Filesystem, part: TablePart, got: str, *, expected: str = "a whole Parquet file") -> DamagedPart:
    """The error of a part whose file is not what its record says."""
    return DamagedPart(expected, got=got, where=fs.absolute(part.path), remedy=_remedy(part))


def _remedy(part: TablePart) -> str:
    run = part.run
    return f"Delete the file if it is there and run stage {run.stage} of {run.capture} again: what is left is kept."
