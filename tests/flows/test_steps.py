"""Blocks of shards on Prefect's threads: a failure stops no other shard, a user's mistake stops all."""

from __future__ import annotations

import functools
import gc
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import duckdb
import pytest

from storage.errors import CaptureCheckError, IncompleteRun, StorageFull, UsageError
from storage.warehouse import run_sql
from tasks.progress import Progress, emit, listening
from tests.endless import endless_query

pytestmark = pytest.mark.usefixtures("prefect_here")


def run(work: Callable[[int], Any], shards: list[int], workers: int = 1) -> dict[int, Exception]:
    """The failures of a flow whose step does `work` for each shard."""
    from prefect import flow, task

    from flows.steps import _each, run_shards

    @task(persist_result=False)
    def step(shards: list[int]) -> None:
        _each(shards, work)

    @flow(persist_result=False)
    def a_run() -> dict[int, Exception]:
        return run_shards(step, shards, workers)

    return a_run()


@pytest.mark.parametrize(("n", "at_most"), [(0, 5), (1, 5), (5, 5), (6, 5), (1234, 100), (99, 100)])
def test_blocks_hold_every_shard_once_in_order(n: int, at_most: int) -> None:
    from flows.steps import in_blocks

    shards = list(range(3, n + 3))
    blocks = in_blocks(shards, at_most)
    assert [s for block in blocks for s in block] == shards
    assert len(blocks) == min(n, at_most)
    sizes = {len(block) for block in blocks}
    assert max(sizes, default=0) - min(sizes, default=0) <= 1


def test_a_failed_shard_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even one of its own block."""
    monkeypatch.setattr("flows.steps.BLOCKS", 2)
    done = []

    def work(shard: int) -> None:
        if shard in (1, 4):
            raise CaptureCheckError("rows that sum to 1", got=f"0.5 in shard {shard}")
        done.append(shard)

    failures = run(work, list(range(6)))
    assert sorted(done) == [0, 2, 3, 5]
    assert {shard: str(error) for shard, error in failures.items()} == {
        1: "expected rows that sum to 1, got 0.5 in shard 1",
        4: "expected rows that sum to 1, got 0.5 in shard 4",
    }


@pytest.mark.parametrize("error", [UsageError("another value"), StorageFull("room on the disk")])
def test_what_every_shard_would_meet_stops_all(error: Exception) -> None:
    done = []

    def work(shard: int) -> None:
        if shard == 2:
            raise error
        done.append(shard)

    with pytest.raises(type(error), match=str(error)):
        run(work, list(range(50)))
    assert done == [0, 1]


def test_workers_run_at_once_and_never_more() -> None:
    three, lock, now, most = threading.Barrier(3), threading.Lock(), 0, 0

    def work(_shard: int) -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        three.wait(60)  # no shard ends before three are under way
        time.sleep(0.05)  # a fourth would be seen
        with lock:
            now -= 1

    assert run(work, list(range(9)), workers=3) == {}
    assert most == 3


def test_interrupt_ends_what_is_under_way() -> None:
    """Ctrl-C while a shard runs: the shard stops at its next step forward, and no other begins."""
    main = threading.main_thread().ident or 0
    begun, ended, heard = [], [], []

    def work(shard: int) -> None:
        begun.append(shard)
        signal.pthread_kill(main, signal.SIGINT)  # a signal wakes a thread that waits for a lock; a flag does not
        for _ in range(3000):  # a minute: main has heard the signal long before
            time.sleep(0.02)
            emit(Progress("capture", 1, "tokens"))
        ended.append(shard)

    for _ in range(5):  # the thread's very start is a moment, too
        begun.clear()
        gc.disable()  # Hypothesis listens to it, and an interrupt that falls into its listener is lost
        try:
            with pytest.raises(KeyboardInterrupt):
                run(work, list(range(200)))
        finally:
            gc.enable()
        with listening(heard.append):
            time.sleep(0.1)
        assert (begun, ended, heard) == ([0], [], [])


@pytest.mark.skipif(sys.platform == "win32", reason="signals end a process there")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_while_the_tables_are_checked(number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    """DuckDB has an exception of its own for it, and Prefect another for SIGTERM."""
    from prefect import flow

    from flows.steps import check_tables_step

    def endless(_runs: str, _captures: list[str]) -> Any:
        main = threading.main_thread().ident or 0
        with duckdb.connect() as connection:
            begun = functools.partial(signal.pthread_kill, main, number)
            return run_sql(connection, endless_query(connection, begun))

    @flow(persist_result=False)
    def a_run() -> None:
        check_tables_step("runs", "c1")

    monkeypatch.setattr("flows.steps.check_tables", endless)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # as the command does
    try:
        with pytest.raises(KeyboardInterrupt):
            a_run()
    finally:
        signal.signal(signal.SIGTERM, before)


def outcome(failures: dict[int, Exception], total: int, finish: Callable[[], None] = lambda: None) -> None:
    from flows.steps import finish_or_raise

    finish_or_raise(finish, "the capture", "c1", total, failures)


def test_some_failed_is_incomplete_and_names_them() -> None:
    marked = []

    def finish() -> None:
        marked.append("partial")
        raise IncompleteRun("all shards")

    with pytest.raises(IncompleteRun) as caught:
        outcome({7: ValueError("late"), 2: CaptureCheckError("rows that sum to 1")}, 9, finish)
    assert str(caught.value) == (
        "expected every shard of the capture, got 2 of 9 failed (2, 7); shard 2: expected rows that sum to 1, "
        "in capture c1. What is done is kept; run the same command again to do the rest."
    )
    assert caught.value.exit_code == 3
    assert marked == ["partial"]


def test_all_failed_is_the_error_itself() -> None:
    with pytest.raises(CaptureCheckError, match="rows that sum to 1"):
        outcome({0: CaptureCheckError("rows that sum to 1"), 1: ValueError("other")}, 2)


def test_none_failed_finishes() -> None:
    done = []
    outcome({}, 2, lambda: done.append(1))
    assert done == [1]
