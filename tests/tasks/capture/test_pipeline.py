"""From the model to the disk: all of it, in order, with bounded memory, and errors that come back."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch

from tasks.capture.pipeline import GATHERED, Pipeline


def pipeline(encode: Any, write: Any, take_turns: bool = True) -> Pipeline[Any]:
    return Pipeline(encode, write, threads=2, take_turns=take_turns)


@pytest.mark.parametrize("take_turns", [True, False])
@pytest.mark.parametrize("n", [0, 1, GATHERED, 5 * GATHERED + 3])
def test_everything_is_written_in_order_in_one_other_thread(n: int, take_turns: bool) -> None:
    seen: list[tuple[int, str]] = []
    with pipeline(lambda i: -i, lambda i: seen.append((i, threading.current_thread().name)), take_turns) as lines:
        for i in range(n):
            lines.put(i % 5, i)
    assert [i for i, _ in seen] == [-i for i in range(n)]
    assert len({thread for _, thread in seen}) == min(n, 1)
    assert threading.current_thread().name not in {thread for _, thread in seen}


def test_two_groups_wait_at_most() -> None:
    gate, two_groups, encoded = threading.Event(), threading.Event(), []

    def encode(i: int) -> None:
        encoded.append(i)
        if len(encoded) == 2 * GATHERED:
            two_groups.set()

    with pipeline(encode, lambda _: gate.wait(), take_turns=False) as lines:
        for i in range(GATHERED):
            lines.put(1, i)
        blocked = threading.Thread(target=lambda: [lines.put(1, i) for i in range(2 * GATHERED)])
        blocked.start()
        assert two_groups.wait(60)
        blocked.join(0.3)  # it would end at once if a third group were let in
        assert blocked.is_alive()
        assert len(encoded) == 2 * GATHERED
        gate.set()
        blocked.join(60)
        assert not blocked.is_alive()
    assert len(encoded) == 3 * GATHERED


def test_taking_turns_the_caller_waits_for_the_encoders() -> None:
    done: list[int] = []

    def encode(i: int) -> None:
        time.sleep(0.02)  # long enough that a caller who did not wait would be seen
        done.append(i)

    with pipeline(encode, lambda _: None, take_turns=True) as lines:
        for i in range(GATHERED):
            lines.put(1, i)
        assert len(done) == GATHERED


def test_on_an_accelerator_the_caller_does_not_wait_for_the_encoders() -> None:
    gate, done = threading.Event(), list[int]()

    def encode(i: int) -> None:
        gate.wait(60)
        done.append(i)

    with pipeline(encode, lambda _: None, take_turns=False) as lines:
        for i in range(GATHERED):
            lines.put(1, i)
        assert done == []
        gate.set()
    assert len(done) == GATHERED


def _fail(_: int) -> None:
    raise OSError("no space left")


@pytest.mark.parametrize("take_turns", [True, False])
@pytest.mark.parametrize(("encode", "write"), [(_fail, int), (int, _fail)], ids=["encode", "write"])
def test_the_error_comes_back_and_ends_the_work(encode: Any, write: Any, take_turns: bool) -> None:
    seen: list[int] = []

    def noted(i: int) -> Any:
        seen.append(i)
        return encode(i)

    with pytest.raises(OSError, match="no space left"), pipeline(noted, write, take_turns) as lines:
        for i in range(10 * GATHERED):
            lines.put(1, i)
    assert len(seen) <= 2 * GATHERED


def test_error_of_the_block_wins() -> None:
    with pytest.raises(KeyError, match="mine"), pipeline(_fail, _fail) as lines:
        lines.put(1, 1)
        raise KeyError("mine")


def test_an_encoder_keeps_to_its_own_core() -> None:
    """And leaves the model's threads alone."""
    torch.set_num_threads(2)
    counts: list[int] = []
    with pipeline(lambda _: torch.get_num_threads(), counts.append) as lines:
        lines.put(1, 1)
    assert (counts, torch.get_num_threads()) == ([1], 2)
