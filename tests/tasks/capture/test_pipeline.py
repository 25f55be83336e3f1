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
    gate, encoded = threading.Event(), []
    with pipeline(encoded.append, lambda _: gate.wait(), take_turns=False) as lines:
        for i in range(GATHERED):
            lines.put(1, i)
        blocked = threading.Thread(target=lambda: [lines.put(1, i) for i in range(2 * GATHERED)])
        blocked.start()
        blocked.join(0.3)
        assert blocked.is_alive()
        assert len(encoded) == 2 * GATHERED
        gate.set()
        blocked.join(10)
        assert not blocked.is_alive()
    assert len(encoded) == 3 * GATHERED


def test_taking_turns_the_caller_waits_for_the_encoders() -> None:
    """Not so on an accelerator."""
    done: list[int] = []

    def encode(i: int) -> None:
        time.sleep(0.05)
        done.append(i)

    for take_turns in (True, False):
        done.clear()
        with pipeline(encode, lambda _: None, take_turns) as lines:
            for i in range(GATHERED):
                lines.put(1, i)
            assert (len(done) == GATHERED) == take_turns


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
