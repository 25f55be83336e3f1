"""From the model to the disk: tensors are encoded in groups on all cores, and written behind the model's back.

On the CPU the model and the encoding want the same cores. Model threads that share a core with an encoder hold up all
others, so the two take turns; on an accelerator encoding goes on beside the model.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from threadpoolctl import threadpool_limits

Encoded = TypeVar("Encoded")

GATHERED = 8
"""Tensors encoded together: two layers' worth, so that every core has something to do."""


class Pipeline(Generic[Encoded]):
    """Calls `encode` for what is put, in `threads` threads, and `write` for each result, in one thread, in that order.

    Two groups are in memory at most. The first error of either is raised in the calling thread, at a later `put` or at
    the end of the block; what was put after it is dropped.
    """

    def __init__(
        self, encode: Callable[..., Encoded], write: Callable[[Encoded], None], *, threads: int, take_turns: bool
    ) -> None:
        self._encode, self._write, self._take_turns = encode, write, take_turns
        self._encoders = ThreadPoolExecutor(max(1, min(threads, GATHERED)), "theodolite-encoder", _alone)
        self._writer = ThreadPoolExecutor(1, "theodolite-writer")
        self._group: list[tuple[int, tuple[Any, ...]]] = []
        self._under_way: list[Future[None]] = []

    def put(self, size: int, *arguments: Any) -> None:
        """Encode and write one thing of that size (any unit: the larger ones begin first)."""
        self._group.append((size, arguments))
        if len(self._group) == GATHERED:
            self.flush()

    def flush(self) -> None:
        """Send what is gathered on its way now, and let go of it."""
        group, self._group = dict(enumerate(self._group)), []
        order = sorted(group, key=lambda i: -group[i][0])
        # Nothing here may keep a tensor: each is given up as soon as it is encoded.
        encoded = {i: self._encoders.submit(self._encode, *group.pop(i)[1]) for i in order}
        self._settle()  # the group before is written while this one is encoded
        self._under_way = [self._writer.submit(self._write_one, encoded[i]) for i in sorted(encoded)]
        if self._take_turns:
            for future in encoded.values():
                future.result()

    def _write_one(self, encoded: Future[Encoded]) -> None:
        self._write(encoded.result())

    def _settle(self) -> None:
        """Wait until everything that was sent is written."""
        under_way, self._under_way = self._under_way, []
        for future in under_way:
            future.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.flush()
                self._settle()
        finally:
            for pool in (self._encoders, self._writer):
                pool.shutdown(cancel_futures=True)


def _alone() -> None:
    """An encoder's tensor operations stay in its thread: torch would give every such thread a team of its own."""
    import torch

    torch.get_num_threads()  # torch gives a thread its team at the first such question, and would undo the limit
    threadpool_limits(limits=1, user_api="openmp")
