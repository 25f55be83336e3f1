"""How work says how far it is, without knowing who listens: the command line's bars, or a worker's log."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO


@dataclass(frozen=True)
class Progress:
    """A step forward of one piece of work.

    `kind` names the work (capture, or a stage's name), `step` is how many units were just done, of `unit`s.
    """

    kind: str
    step: float
    unit: str
    restored: bool = False
    """Done by an earlier try: it counts as done, and says nothing of how fast the work goes."""
    note: str = ""
    """What a user must know now, as a rule with a step of 0: that the work waits for another process."""


Listener = Callable[[Progress], None]
_listeners: list[Listener] = []


def emit(progress: Progress) -> None:
    """Tell every listener; called from worker threads, so listeners must not block."""
    for listener in tuple(_listeners):
        listener(progress)


def waits(kind: str, part: str) -> None:
    """Tell that another process holds a part of this work, and that this one waits until that has done it."""
    emit(Progress(kind, 0, "", note=f"another run is at work on {part}; waiting until it is done"))


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Pass everything that is emitted inside the block to `listener`."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


DIGEST = "digest"
"""The kind of progress that reading files for their digest tells, in bytes."""

_BLOCK = 1 << 20


def told_digest(file: BinaryIO) -> bytes:
    """SHA-256 of what is left of a file, a block of it in memory at a time; tells the bytes as they are read."""
    found = hashlib.sha256()
    while block := file.read(_BLOCK):
        found.update(block)
        emit(Progress(DIGEST, len(block), "bytes"))
    return found.digest()
