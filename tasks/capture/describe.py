"""A capture described once in a process, its files read for their digest but once, and the reading shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.capture.corpus import reading_of
from tasks.capture.plan import Described, describe
from tasks.corpora.files import CorpusFile, expand
from tasks.models.sources import ModelSource, model_size, read_config, resolve
from tasks.progress import DIGEST

if TYPE_CHECKING:
    from tasks.capture.settings import CaptureSettings

Shown = Callable[[str, float, str], AbstractContextManager[None]]
"""What shows work of a kind, so much in all, in a unit."""

_last: list[tuple[Any, Described]] = []
"""What this process described last, after what it was described from."""


def describe_once(settings: CaptureSettings, shown: Shown) -> Described:
    """`describe`, unless this process described the same settings last and no file changed since.

    The command line describes a capture before its flow does, which may run elsewhere: here the flow reads nothing
    again. A data set of the hub has no file that could be looked at, and is described anew.
    """
    source = resolve(settings.model)
    files = expand(settings.corpus, reading_of(source, read_config(source)).kind)
    stamp = (settings, source, files, _stamp(source, files))  # before the reading: what changes meanwhile differs
    if stamp[-1] is not None and _last and _last[0][0] == stamp:
        return _last[0][1]
    with shown(DIGEST, model_size(source) + sum(file.size() for file in files if file.origin is None), "bytes"):
        described = describe(settings, files)
    _last[:] = [(stamp, described)]
    return described


def _stamp(source: ModelSource, files: Sequence[CorpusFile]) -> list[tuple[str, int, int]] | None:
    """Each file that lies here, with its size and time; None where not all of a corpus can be told by its files."""
    if any(file.kind == "dataset" for file in files):
        return None
    local = [Path(file.path) for file in files if file.kind != "topics" and file.origin is None]
    stats = [(str(path), path.stat()) for path in [*local, *sorted(Path(source.folder).iterdir())]]
    return [(path, stat.st_size, stat.st_mtime_ns) for path, stat in stats]
