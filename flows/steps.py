"""The tasks as Prefect sees them: coarse blocks of shards on a task runner, where one failure stops no other shard."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, cast

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.futures import PrefectFuture
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner
from prefect.tasks import Task

from flows.checks import check_tables, require
from storage.errors import (
    RESUME,
    CorpusError,
    IncompleteRun,
    ModelError,
    StorageFull,
    StorageReadOnly,
    TheodoliteError,
    UsageError,
)
from storage.warehouse import CheckResult
from tasks.capture.finish import finish_capture
from tasks.progress import Progress, listening
from tasks.stages.run import finish_stage, run_stage_shards

DEVICE_TAG = "theodolite-device"
"""On every task that needs the device; a Prefect concurrency limit on it keeps several machines' runs apart."""

BLOCKS = 100
"""At most so many Prefect tasks a flow run: its database is slow with thousands."""

STOPPING = (UsageError, CorpusError, ModelError, StorageFull, StorageReadOnly)
"""Errors that every other shard would meet too."""

_stop = threading.Event()
_under_way, _ended = set[int](), threading.Condition()
"""The threads that have a block, and word that one has come to its end."""


class Stopped(Exception):
    """The run was interrupted, or has met an error that every shard would meet: what is under way ends here."""


class ShardFailures(RuntimeError):
    """The shards of one block that failed, each with its error."""

    def __init__(self, failures: dict[int, Exception]) -> None:
        self.failures = failures
        super().__init__("; ".join(f"shard {shard}: {error}" for shard, error in failures.items()))


def _each(shards: Iterable[int], work: Callable[[int], Any]) -> None:
    _under_way.add(threading.get_ident())
    try:
        _one_by_one(shards, work)
    finally:
        with _ended:
            _under_way.discard(threading.get_ident())
            _ended.notify_all()


def _one_by_one(shards: Iterable[int], work: Callable[[int], Any]) -> None:
    failures: dict[int, Exception] = {}
    for shard in shards:
        if _stop.is_set():
            raise Stopped
        try:
            work(shard)
        except (Stopped, *STOPPING):
            _stop.set()
            raise
        except Exception as error:  # told with all others at the end of the run
            failures[shard] = error
    if failures:
        raise ShardFailures(failures)


# Everywhere below: the manifest alone says what is done, so Prefect neither caches, nor keeps results, nor tries again.
@task(name="capture-shards", tags=[DEVICE_TAG], cache_policy=NO_CACHE, persist_result=False, retries=0)
def capture_block(runs: str, capture: str, shards: list[int]) -> None:
    """Capture these shards, one after the other."""
    from tasks.capture.run import capture_shards  # it loads transformers, which a stage does without

    _each(shards, lambda shard: capture_shards(runs, capture, [shard]))


@task(name="stage-shards", cache_policy=NO_CACHE, persist_result=False, retries=0)
def stage_block(runs: str, capture: str, stage: str, key: str, phase: str, shards: list[int]) -> None:
    """A phase of a stage, its survey or its rows, for these shards, one after the other."""
    _each(shards, lambda shard: run_stage_shards(runs, capture, stage, key, [shard], phase))


@task(name="finish-capture", cache_policy=NO_CACHE, persist_result=False, retries=0)
def finish_capture_step(runs: str, capture: str) -> None:
    """Publish the tables of a capture whose shards are all there."""
    finish_capture(runs, capture)


@task(name="finish-stage", cache_policy=NO_CACHE, persist_result=False, retries=0)
def finish_stage_step(runs: str, capture: str, stage: str, key: str, phase: str) -> None:
    """Combine the parts of a phase of a stage, and publish the result."""
    finish_stage(runs, capture, stage, key, phase)


@task(name="check-tables", cache_policy=NO_CACHE, persist_result=False, retries=0)
def check_tables_step(runs: str, capture: str) -> tuple[CheckResult, ...]:
    """Check every identity of the capture's tables; ChecksFailed unless all hold."""
    results = check_tables(runs, [capture])
    require(results, [capture])
    return tuple(results)


def in_blocks(shards: Sequence[int], at_most: int = BLOCKS) -> list[list[int]]:
    """Consecutive shards in at most so many blocks, whose sizes differ by one at most."""
    n = min(len(shards), at_most)
    edges = [round(i * len(shards) / n) for i in range(n + 1)] if n else [0]
    return [list(shards[a:b]) for a, b in pairwise(edges)]


def threads(workers: int) -> TaskRunner[PrefectFuture[Any]]:
    """Prefect's threads, never more than `workers`."""
    return cast("TaskRunner[PrefectFuture[Any]]", ThreadPoolTaskRunner(max_workers=workers))


def run_shards(step: Task[Any, Any], shards: Sequence[int], workers: int, **arguments: Any) -> dict[int, Exception]:
    """Submit a step for all shards and wait for every one; the errors of those that failed, by shard.

    Raises what every shard would meet (a user's error, a full or read-only disk), and KeyboardInterrupt once what is
    under way has come to an end.
    """
    _stop.clear()
    with listening(_checkpoint), threads(workers) as runner:
        try:
            blocks = in_blocks(shards)
            futures = [runner.submit(step, {**arguments, "shards": block}) for block in blocks]
            results = [future.result(raise_on_failure=False) for future in futures]
        except BaseException:  # Ctrl-C, or SIGTERM, for which Prefect has an exception of its own
            _stop.set()
            with _ended:  # the runner, on leaving, waits for the threads it knows: not for one interrupted in its start
                _ended.wait_for(lambda: not _under_way)
            raise
    failures: dict[int, Exception] = {}
    for result in results:
        if isinstance(result, ShardFailures):
            failures |= result.failures
        elif isinstance(result, BaseException) and not isinstance(result, Stopped):
            raise result
    return failures


def _checkpoint(_progress: Progress) -> None:
    """Every step forward is a place to stop."""
    if _stop.is_set():
        raise Stopped


def finish_or_raise(
    finish: Callable[[], None], what: str, capture: str, total: int, failures: dict[int, Exception]
) -> None:
    """Publish what comes after the last shard, or say which shards failed.

    Raises the first shard's error itself where none of all shards succeeded, else IncompleteRun.
    """
    if not failures:
        finish()
        return
    with suppress(IncompleteRun):
        finish()  # which marks it partial
    shard, first = min(failures.items(), key=lambda item: item[0])
    if len(failures) == total:
        raise first
    named = ", ".join(str(s) for s in sorted(failures)[:8]) + (" …" if len(failures) > 8 else "")
    kind = "" if isinstance(first, TheodoliteError) else f"{type(first).__name__}: "
    raise IncompleteRun(
        f"every shard of {what}",
        got=f"{len(failures)} of {total} failed ({named}); shard {shard}: {kind}{first}",
        where=f"capture {capture}",
        remedy=RESUME,
    ) from first
