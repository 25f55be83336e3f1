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


Listener = Callable[[TrainProgress], None]

_listener: ContextVar[Listener | None] = ContextVar("training_listener", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Whoever trains inside this context in this process tells the listener."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def listener() -> Listener | None:
    """Who listens now."""
    return _listener.get()
