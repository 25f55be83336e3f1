"""The tasks as Prefect sees them: coarse blocks of shards on a task runner, where one failure stops no other shard."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.futures import PrefectFuture
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner
from prefect.tasks import Task

from flows.checking import check_tables
from storage.errors import (
    CorpusError,
    IncompleteRun,
    ModelError,
    StorageFull,
    StorageReadOnly,
    TheodoliteError,
    UsageError,
)
from tasks.capture import capture_shards
from tasks.capture_finish import finish_capture
from tasks.progress import Progress, listening
from tasks.stage import finish_stage, run_stage_shards

BLOCKS = 100
"""At most so many Prefect tasks a flow run: its database is slow with thousands."""

_USER_ERRORS = (UsageError, CorpusError, ModelError)
_STOPPING = (*_USER_ERRORS, StorageFull, StorageReadOnly)
"""Errors that every other shard would meet too."""

# The manifest alone says what is done: Prefect neither caches, nor keeps results, nor tries again.
_OPTIONS: dict[str, Any] = {"cache_policy": NO_CACHE, "persist_result": False, "retries": 0}

_stop = threading.Event()


class Stopped(Exception):
    """The run was interrupted, or has met an error that every shard would meet: what is under way ends here."""


class ShardFailures(RuntimeError):
    """The shards of one block that failed, each with its error."""

    def __init__(self, failures: dict[int, Exception]) -> None:
        self.failures = failures
        super().__init__("; ".join(f"shard {shard}: {error}" for shard, error in failures.items()))


def _each(shards: Iterable[int], work: Callable[[int], Any]) -> None:
    failures: dict[int, Exception] = {}
    for shard in shards:
        if _stop.is_set():
            raise Stopped
        try:
            work(shard)
        except (Stopped, *_STOPPING):
            _stop.set()
            raise
        except Exception as error:  # told with all others at the end of the run
            failures[shard] = error
    if failures:
        raise ShardFailures(failures)


@task(name="capture-shards", task_run_name="capture shards {shards}", tags=["theodolite-device"], **_OPTIONS)
def capture_block(runs: str, capture: str, shards: list[int]) -> None:
    """Capture these shards, one after the other."""
    _each(shards, lambda shard: capture_shards(runs, capture, [shard]))


@task(name="stage-shards", task_run_name="{stage} shards {shards}", **_OPTIONS)
def stage_block(runs: str, capture: str, stage: str, key: str, shards: list[int]) -> None:
    """A stage's part of these shards, one after the other."""
    _each(shards, lambda shard: run_stage_shards(runs, capture, stage, key, [shard]))


finish_capture_step = task(finish_capture, name="finish-capture", **_OPTIONS)
finish_stage_step = task(finish_stage, name="finish-stage", **_OPTIONS)
check_tables_step = task(check_tables, name="check-tables", **_OPTIONS)


def in_blocks(shards: Sequence[int], at_most: int = BLOCKS) -> list[list[int]]:
    """Consecutive shards in at most so many blocks, whose sizes differ by one at most."""
    n = min(len(shards), at_most)
    edges = [round(i * len(shards) / n) for i in range(n + 1)] if n else [0]
    return [list(shards[a:b]) for a, b in zip(edges, edges[1:], strict=False)]


def threads(workers: int) -> TaskRunner[Any]:
    """Prefect's threads, never more than `workers`."""
    return ThreadPoolTaskRunner(max_workers=workers)


def run_shards(step: Task[Any, Any], shards: Sequence[int], workers: int, **arguments: Any) -> dict[int, Exception]:
    """Submit a step for all shards and wait for every one; the errors of those that failed, by shard.

    Raises what every shard would meet (a user's error, a full or read-only disk), and KeyboardInterrupt once what is
    under way has come to an end.
    """
    _stop.clear()
    with listening(_checkpoint), threads(workers) as runner:
        futures = [runner.submit(step, {**arguments, "shards": block}) for block in in_blocks(shards)]
        try:
            results = [future.result(raise_on_failure=False) for future in futures]
        except KeyboardInterrupt:
            _stop.set()
            _wait(futures)
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


def _wait(futures: Iterable[PrefectFuture[Any]]) -> None:
    for future in futures:
        future.wait()


def finish_or_raise(
    finish: Task[Any, Any], arguments: tuple[str, ...], what: str, total: int, failures: dict[int, Exception]
) -> None:
    """Publish what comes after the last shard, or say which shards failed.

    Raises the first shard's error itself where none of all shards succeeded, else IncompleteRun.
    """
    if not failures:
        finish(*arguments)
        return
    with suppress(IncompleteRun):
        finish(*arguments)  # which marks it partial
    shard, first = min(failures.items(), key=lambda item: item[0])
    if len(failures) == total and isinstance(first, TheodoliteError):
        raise first
    named = ", ".join(str(s) for s in sorted(failures)[:8]) + (" …" if len(failures) > 8 else "")
    kind = "" if isinstance(first, TheodoliteError) else f"{type(first).__name__}: "
    raise IncompleteRun(
        f"all {total} shards of {what}",
        got=f"{len(failures)} failed ({named}); shard {shard}: {kind}{first}",
        where=f"capture {arguments[1]}",
        remedy="What is done is kept; run the same command again to do the rest.",
    ) from first
