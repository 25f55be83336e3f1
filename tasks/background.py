"""One writer thread behind a bounded queue: writing overlaps computing, and its errors come back."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

_STOP = object()


class BackgroundCalls:
    """Runs calls one after the other in a thread, in the order in which they were put.

    At most `depth` calls wait, so memory is bounded by what those hold. The first error is raised in the calling
    thread, at the next `put` or at the end of the block; the calls after it are dropped.
    """

    def __init__(self, depth: int) -> None:
        self._calls: queue.Queue[Any] = queue.Queue(maxsize=depth)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="theodolite-writer", daemon=True)

    def put(self, call: Callable[..., Any], *arguments: Any) -> None:
        """Queue one call; blocks while the queue is full; raises what an earlier call raised."""
        self._raise()
        self._calls.put((call, arguments))

    def _run(self) -> None:
        while (item := self._calls.get()) is not _STOP:
            if self._error is not None:
                continue
            call, arguments = item
            try:
                call(*arguments)
            except BaseException as error:  # whatever it is, the calling thread must hear of it
                self._error = error
            del item, call, arguments

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._error is None:
            self._error = error
        self._calls.put(_STOP)
        self._thread.join()
        if error is None:
            self._raise()
