"""How work says how far it is, without knowing who listens: the command line's bars, or a worker's log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """A step forward of one piece of work.

    `kind` names the work (capture, or a stage's name), `step` is how many units were just done, of `unit`s.
    """

    kind: str
    step: float
    unit: str
    note: str = ""


Listener = Callable[[Progress], None]
_listeners: list[Listener] = []


def emit(progress: Progress) -> None:
    """Tell every listener; called from worker threads, so listeners must not block."""
    for listener in tuple(_listeners):
        listener(progress)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Pass everything that is emitted inside the block to `listener`."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)
