"""How a training run tells where it stands: a callback, which reaches through Prefect without being a parameter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class TrainProgress:
    """Where a run stands, told after every step."""

    step: int
    """Steps done."""
    steps: int
    loss: float
    """Nats per character of this step's windows."""
    characters_per_second: float
    seconds_left: float


@dataclass(frozen=True)
class MeasureProgress:
    """How much of the whole held-out text is measured, after the last step: told before the first window too."""

    windows: int
    of: int


Listener = Callable[[TrainProgress], None]
MeasureListener = Callable[[MeasureProgress], None]

_listeners: ContextVar[tuple[Listener, MeasureListener | None] | None] = ContextVar("training_listeners", default=None)


@contextmanager
def listening(listener: Listener, measuring: MeasureListener | None = None) -> Iterator[None]:
    """Whoever trains inside this context in this process tells the listeners."""
    token = _listeners.set((listener, measuring))
    try:
        yield
    finally:
        _listeners.reset(token)


def listeners() -> tuple[Listener, MeasureListener | None] | None:
    """Who listens now."""
    return _listeners.get()
