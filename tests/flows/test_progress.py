"""Progress: lines with rate and time left, fed from any thread, and silence about what is over at once."""

from __future__ import annotations

import io
import threading
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

from flows.progress import Bars, Lines, display_for, pace, shown_by, waiting, work
from flows.train_progress import TrainingTold
from storage.filesystem import open_runs
from storage.layout import Layout
from tasks.progress import Progress, emit, listening, waits
from tasks.shard import PartResult, publish_once
from tasks.training.progress import MeasureProgress, TrainProgress


@pytest.mark.parametrize(
    ("done", "total", "elapsed", "told"),
    [
        (1024, 4096, 2, "1,024/4,096 tokens, 512 tokens/s, 6 s left"),
        (1, 1000, 1, "1/1,000 tokens, 1 tokens/s, 16 min 39 s left"),
        (1, 8001, 1, "1/8,001 tokens, 1 tokens/s, 2 h 13 min left"),
        (0, 10, 0, "0/10 tokens, 0 tokens/s"),
        (10, 10, 5, "10/10 tokens, 2 tokens/s"),
        (1024, 0, 2, "1,024 tokens, 512 tokens/s"),
    ],
)
def test_pace(done: float, total: float, elapsed: float, told: str) -> None:
    assert pace(done, total, elapsed, "tokens") == told


def test_lines_count_steps_of_their_own_work_only() -> None:
    lines: list[str] = []
    display = Lines(lines.append, every_s=60)
    with shown_by(display), work("capture", 10, "tokens"):
        emit(Progress("capture", 4, "tokens"))
        emit(Progress("contributions", 1, "documents"))
        display.tell()
        display.tell()  # no news
        emit(Progress("capture", 5, "tokens"))
        emit(Progress("capture", 1, "tokens"))
        display.tell()
    assert [line.split(" tokens")[0] for line in lines] == ["capture: 4/10", "capture: 10/10"]


def test_what_an_earlier_try_did_counts_as_done_and_not_as_speed() -> None:
    assert pace(75, 100, 10, "tokens", restored=25) == "75/100 tokens, 5 tokens/s, 5 s left"
    assert pace(25, 100, 10, "tokens", restored=25) == "25/100 tokens, 0 tokens/s"
    lines: list[str] = []
    display = Lines(lines.append, every_s=60)
    with shown_by(display), work("masking", 10, "documents"):
        emit(Progress("masking", 4, "documents", restored=True))
        display.tell()
    assert lines == ["masking: 4/10 documents, 0 documents/s"]


@pytest.mark.parametrize("first", [1, 51])
def test_training_that_goes_on_tells_what_was_done_before(first: int) -> None:
    told: list[Progress] = []
    tell = TrainingTold(100, 10).step
    with listening(told.append):
        for step in (first, first + 1):
            tell(TrainProgress(step, 100, 2.0, 1e3, 10.0))
    assert sum(p.step for p in told) == first + 1
    assert sum(p.step for p in told if not p.restored) == 2
    assert [p.note for p in told if p.note] == (["goes on from step 50 of 100"] if first > 1 else [])


@pytest.mark.parametrize(
    ("last", "note"),
    [
        (57, "stopped after step 57; the same command goes on from the checkpoint of step 50 and repeats 7"),
        (60, "stopped after step 60; the same command goes on from the checkpoint of step 60"),
        (100, None),
    ],
)
def test_interrupted_training_tells_what_is_repeated(last: int, note: str | None) -> None:
    lines: list[str] = []
    told = TrainingTold(100, 10)
    with shown_by(Lines(lines.append, every_s=60)), pytest.raises(KeyboardInterrupt), told.shown():
        for step in range(1, last + 1):
            told.step(TrainProgress(step, 100, 2.0, 1e3, 10.0))
        raise KeyboardInterrupt
    assert lines == ([f"train: {note}"] if note else [])


def test_measuring_is_a_work_of_its_own() -> None:
    lines: list[str] = []
    told, display = TrainingTold(2, 10), Lines(lines.append, every_s=60)
    with shown_by(display), told.shown():
        told.step(TrainProgress(1, 2, 2.0, 1e3, 10.0))
        display.tell()
        for windows in range(3):
            told.measure(MeasureProgress(windows, 4))
        display.tell()
    assert [line.split(",")[0] for line in lines] == ["train: 1/2 steps", "measure: 2/4 windows"]
    assert "windows/s" in lines[1] and lines[1].endswith(" left")


@pytest.mark.parametrize("terminal", [False, True])
def test_a_run_that_waits_for_another_says_so(terminal: bool, tmp_path: Path) -> None:
    screen = io.StringIO()
    fs, layout = open_runs(str(tmp_path), create=True), Layout("a")
    publishes = partial(publish_once, fs, layout, layout.part_record("masking", "key", "00000"), "name")

    def release(lock: AbstractContextManager[None]) -> None:
        lock.__exit__(None, None, None)

    held = fs.lock(layout.lock("name"))
    held.__enter__()
    display = display_for(Console(file=screen, force_terminal=terminal, width=120))
    with shown_by(display), work("masking", 10, "documents"):
        publishes(lambda _staging: PartResult(), lambda: (waits("masking", "part 00000"), release(held))[0])
    assert "masking: another run is at work on part 00000; waiting until it is done" in screen.getvalue()


def test_lines_say_nothing_of_what_ends_sooner() -> None:
    lines: list[str] = []
    with shown_by(Lines(lines.append, every_s=60)), work("capture", 10, "tokens"):
        emit(Progress("capture", 10, "tokens"))
    assert lines == []


def test_lines_come_by_the_clock_and_not_by_the_steps() -> None:
    lines, told = list[str](), threading.Event()
    display = Lines(lambda line: (lines.append(line), told.set())[0], every_s=0.01)
    with shown_by(display), work("capture", 10, "tokens"):
        emit(Progress("capture", 4, "tokens"))
        assert told.wait(30)
    emit(Progress("capture", 4, "tokens"))
    assert len(lines) == 1


def test_steps_from_many_threads_are_all_counted() -> None:
    lines: list[str] = []
    display = Lines(lines.append, every_s=60)
    with shown_by(display), work("capture", 400, "tokens"):
        threads = [
            threading.Thread(target=lambda: [emit(Progress("capture", 1, "tokens")) for _ in range(100)])
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        display.tell()
    assert lines[0].startswith("capture: 400/400 tokens")


def _hundred_steps() -> None:
    for _ in range(100):
        emit(Progress("capture", 1, "tokens"))


def test_nothing_is_heard_after_the_work() -> None:
    lines: list[str] = []
    with shown_by(Lines(lines.append, every_s=0.01)), work("capture", 10, "tokens"):
        pass
    emit(Progress("capture", 1, "tokens"))
    assert lines == []


def test_what_has_no_measure_is_told_once() -> None:
    lines: list[str] = []
    with shown_by(Lines(lines.append)), waiting("reading the text"):
        pass
    assert lines == ["reading the text"]


def test_display_suits_the_console() -> None:
    assert isinstance(display_for(Console(file=io.StringIO(), force_terminal=True)), Bars)
    assert isinstance(display_for(Console(file=io.StringIO())), Lines)


def test_bars_show_rate_and_leave_nothing_behind() -> None:
    screen = io.StringIO()
    bars = Bars(Console(file=screen, force_terminal=True, width=120), after_s=0)
    with shown_by(bars):
        for total in (100, 50):  # one work after the other
            with work("capture", total, "tokens"):
                emit(Progress("capture", total / 2, "tokens"))
                bars.refresh()
    shown = screen.getvalue()
    assert "50/100 tokens" in shown
    assert "25/50 tokens" in shown
    assert "tokens/s" in shown
    assert shown.count("\x1b[2K") >= 2  # each bar's line is erased at its end


def test_a_bar_of_work_whose_end_nobody_knows() -> None:
    screen = io.StringIO()
    bars = Bars(Console(file=screen, force_terminal=True, width=120), after_s=0)
    with shown_by(bars), work("documents", 0, "documents"):
        emit(Progress("documents", 2048, "documents"))
        bars.refresh()
    assert "2,048 documents" in screen.getvalue()
    assert "2,048/" not in screen.getvalue()
