"""Processes that write parts as `tasks/shard.py` does, to be killed: python -m tests.storage.worker.

Each line of input, "WHERE KIND COUNT PROCESSES STOP", forks processes of the same work. They say "wrote N" per part
that one wrote, "waited" when one had to wait for another, "waiting" where one stops for good before its change STOP to
the folder (0: nowhere), and "made N" with the number of changes at the end; the worker says "start PID" of the first,
and "end CODE" when all have ended.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

import numpy as np

from storage.filesystem import Filesystem, open_runs
from storage.layout import Layout, shard_part, under
from storage.manifest import Manifest, PartRecord
from storage.tables import INT, REAL, PartWriter, table
from tests.changes import Changes

LAYOUT = Layout("tiny-capture")
KEY = "ab" * 32
SPEC = table("rows", {"doc": INT}, x=REAL)


def write_table_part(fs: Filesystem, index: int, between: Callable[[], None] = lambda: None) -> None:
    """One part of a stage: two files, so that a kill can fall between the two renames; `between` is called in each."""
    part, files, moves, rows = shard_part(index), {}, [], {}
    for name in ("rows", "more"):
        target = LAYOUT.table_part(name, KEY, part)
        staged = under(LAYOUT.staging(f"stage-{part}"), name)
        with PartWriter(fs, staged, SPEC, {"capture": LAYOUT.capture, "stage_key": KEY}) as writer:
            for block in range(3):
                writer.add({"doc": index, "x": np.linspace(block, index, 2_000)})
                between()
            files[target], rows[name] = writer.close()
        moves.append((staged, target))
    Manifest(fs, LAYOUT).publish(LAYOUT.part_record("stage", KEY, part), PartRecord(files, rows), moves)


def write_tensor_part(fs: Filesystem, index: int, _between: Callable[[], None]) -> None:
    from tests.storage.stores import write_shard

    write_shard(fs, index)


def work(where: str, kind: str, count: int, stop: int) -> None:
    """Write every part that is not there yet, under its lock."""
    changes = Changes(where, stop, signal.pause)
    changes.watch()
    fs = open_runs(where, create=True)
    manifest = Manifest(fs, LAYOUT)
    for index in range(count):
        record = LAYOUT.part_record("stage", KEY, shard_part(index)) if kind == "tables" else LAYOUT.shard_record(index)
        if manifest.published(record) is not None:
            continue
        with fs.lock(LAYOUT.lock(f"{kind}-{index}"), lambda: say("waited")):
            if manifest.published(record) is None:
                (write_table_part if kind == "tables" else write_tensor_part)(fs, index, changes.count)
                say(f"wrote {index}")
    say(f"made {changes.made}")


def say(line: str) -> None:
    """One write a line: processes that share the output would otherwise part a line from its end."""
    os.write(1, f"{line}\n".encode())


def main() -> None:
    """Import what is slow once; then fork processes per line of input, and say when they start and how they ended."""
    import filelock  # noqa: F401
    import pandas as pd  # noqa: F401 - pyarrow imports it
    import zarr.storage  # noqa: F401

    import tests.storage.stores  # noqa: F401

    for line in sys.stdin:
        where, kind, count, processes, stop = line.split()
        children = []
        for _ in range(int(processes)):
            child = os.fork()
            if child == 0:
                work(where, kind, int(count), int(stop))
                os._exit(0)
            children.append(child)
        say(f"start {children[0]}")
        say(f"end {max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)}")


if __name__ == "__main__":
    main()
