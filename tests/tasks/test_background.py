"""The writer thread: order, bounded memory, and errors that come back."""

from __future__ import annotations

import threading

import pytest

from tasks.background import BackgroundCalls


def test_calls_run_in_order_in_another_thread() -> None:
    seen: list[tuple[int, int]] = []
    with BackgroundCalls(2) as calls:
        for i in range(50):
            calls.put(lambda i: seen.append((i, threading.get_ident())), i)
    assert [i for i, _ in seen] == list(range(50))
    assert {thread for _, thread in seen} != {threading.get_ident()}


def test_queue_is_bounded() -> None:
    gate, started = threading.Event(), threading.Semaphore(0)
    with BackgroundCalls(2) as calls:
        calls.put(lambda: (started.release(), gate.wait()))
        started.acquire()
        calls.put(int)
        calls.put(int)
        blocked = threading.Thread(target=calls.put, args=(int,))
        blocked.start()
        blocked.join(0.2)
        assert blocked.is_alive()
        gate.set()
        blocked.join(10)
        assert not blocked.is_alive()


def test_first_error_is_raised_and_later_calls_are_dropped() -> None:
    seen: list[int] = []

    def fail() -> None:
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"), BackgroundCalls(4) as calls:
        calls.put(seen.append, 1)
        calls.put(fail)
        calls.put(seen.append, 2)
    assert seen == [1]


def test_error_of_the_block_wins() -> None:
    with pytest.raises(KeyError, match="mine"), BackgroundCalls(4):
        raise KeyError("mine")
