"""The files of folders and patterns, in an order that is the same everywhere, links followed without running in rings.

`Path.rglob` passes over folders that it may not read and over linked folders, without a word; `glob` runs around a
ring of links until the system stops it. Either would make another corpus of the same files.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from storage.errors import CorpusError


def walk(folder: Path) -> list[Path]:
    """Everything below a folder that is no folder, sorted by path; CorpusError names a folder that cannot be read."""
    return sorted(_walk(folder))


def _walk(folder: Path) -> Iterator[Path]:
    seen = {os.path.realpath(folder)}
    for here, folders, files in os.walk(folder, onerror=_refuse, followlinks=True):
        folders.sort()
        real = {name: os.path.realpath(os.path.join(here, name)) for name in folders}  # noqa: PTH118
        folders[:] = [name for name in folders if real[name] not in seen]
        seen.update(real.values())
        yield from (Path(here) / name for name in files)


def _refuse(error: OSError) -> NoReturn:
    raise CorpusError(
        "a folder that can be read",
        got=error.strerror or type(error).__name__,
        where=str(error.filename),
        remedy="Give yourself the right to read it, or name the files that you mean.",
    ) from error


def matching(pattern: Path) -> list[Path]:
    """What a pattern matches, sorted by path; of the ways that links open to one place, the shortest."""
    found: dict[str, Path] = {}
    for match in glob.glob(str(pattern), recursive=True):  # noqa: PTH207 (keeps `**` and `~`)
        path = Path(match)
        place = str(Path(os.path.realpath(path.parent)) / path.name)
        if place not in found or _length(path) < _length(found[place]):
            found[place] = path
    return sorted(found.values())


def _length(path: Path) -> tuple[int, tuple[str, ...]]:
    return len(path.parts), path.parts
