"""How far the work is: bars at a terminal, plain lines elsewhere, lines in the log of a deployed run.

Flows say what there is to do (`work`), tasks say each step (`tasks.progress.emit`); whoever runs the flow chooses the
display.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

from rich.console import Console

from tasks.progress import Progress, listening

_LINE_EVERY_S = 5.0
_LOG_EVERY_S = 30.0


class Display(Protocol):
    """Something that shows one piece of work at a time, fed from any thread."""

    def begin(self, kind: str, total: float, unit: str) -> None: ...

    def advance(self, kind: str, step: float, restored: bool = False) -> None:
        """A step forward; restored: of an earlier try, which the rate leaves out."""

    def note(self, kind: str, note: str) -> None:
        """Something that a user must know now."""

    def end(self, kind: str) -> None: ...

    def waiting(self, what: str) -> AbstractContextManager[object]:
        """Show that something goes on whose end cannot be told."""


class Lines:
    """A line every few seconds, with rate and time left; nothing about work that ends sooner.

    Told by the clock and not by the steps: of steps that come many at once the first would make the rest look slow.
    """

    def __init__(self, write: Callable[[str], None], every_s: float = _LINE_EVERY_S) -> None:
        self._write, self._every = write, every_s
        self._lock = threading.Lock()

    def begin(self, kind: str, total: float, unit: str) -> None:
        self._kind, self._total, self._unit = kind, total, unit
        self._done = self._restored = self._told = 0.0
        self._began = time.monotonic()
        self._ended = threading.Event()
        self._clock = threading.Thread(target=self._tells, name="progress", daemon=True)
        self._clock.start()

    def _tells(self) -> None:
        while not self._ended.wait(self._every):
            self.tell()

    def advance(self, kind: str, step: float, restored: bool = False) -> None:
        with self._lock:
            self._done += step
            self._restored += step if restored else 0.0

    def tell(self) -> None:
        """How far the work is, if it is further than when it was told last."""
        with self._lock:
            if self._done == self._told:
                return
            self._told, elapsed = self._done, time.monotonic() - self._began
            line = f"{self._kind}: {pace(self._done, self._total, elapsed, self._unit, self._restored)}"
        self._write(line)

    def note(self, kind: str, note: str) -> None:
        self._write(f"{kind}: {note}")

    def end(self, kind: str) -> None:
        """Nothing is left to tell: the flow's own summary follows."""
        self._ended.set()
        self._clock.join()

    def waiting(self, what: str) -> AbstractContextManager[object]:
        self._write(what)
        return nullcontext()


class Bars:
    """A bar at a terminal, gone when the work is done; it appears after a second."""

    def __init__(self, console: Console, after_s: float = 1.0) -> None:
        self._console, self._after = console, after_s

    def begin(self, kind: str, total: float, unit: str) -> None:
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as RichProgress

        self._bars = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:,.0f}" + ("/{task.total:,.0f}" if total else "") + " {task.fields[unit]}"),
            TextColumn("{task.fields[rate]}"),
            console=self._console,
            transient=True,
        )
        self._task = self._bars.add_task(kind, total=total or None, unit=unit, rate="", visible=False)
        self._total, self._unit, self._done, self._restored = total, unit, 0.0, 0.0
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._bars.start()

    def advance(self, kind: str, step: float, restored: bool = False) -> None:
        with self._lock:
            self._done += step
            self._restored += step if restored else 0.0
            elapsed = time.monotonic() - self._began
            rate = _rate(self._done, self._total, max(elapsed, 1e-9), self._unit, self._restored)
            self._bars.update(self._task, completed=self._done, rate=rate, visible=elapsed >= self._after)

    def note(self, kind: str, note: str) -> None:
        self._console.print(f"{kind}: {note}", markup=False, highlight=False)

    def refresh(self) -> None:
        """Draw now, instead of at the next tenth of a second."""
        self._bars.refresh()

    def end(self, kind: str) -> None:
        self._bars.stop()

    def waiting(self, what: str) -> AbstractContextManager[object]:
        return self._console.status(what)


def pace(done: float, total: float, elapsed_s: float, unit: str, restored: float = 0.0) -> str:
    """'1,024/4,096 tokens, 512 tokens/s, 6 s left'; a total of 0 is one that nobody knows.

    restored: how many of those done are an earlier try's.
    """
    count = f"{done:,.0f}{f'/{total:,.0f}' if total else ''} {unit}"
    return f"{count}, {_rate(done, total, elapsed_s, unit, restored)}"


def _rate(done: float, total: float, elapsed_s: float, unit: str, restored: float) -> str:
    """'512 tokens/s, 6 s left', from what was done here and now."""
    rate = (done - restored) / elapsed_s if elapsed_s else 0.0
    left = f", {_span((total - done) / rate)} left" if rate > 0 and done < total else ""
    return f"{_figure(rate)} {unit}/s{left}"


def _figure(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def _span(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


_display: Display | None = None


@contextmanager
def shown_by(display: Display) -> Iterator[None]:
    """Let this display show the work inside the block."""
    global _display  # noqa: PLW0603 - one run shows its progress in a process
    before, _display = _display, display
    try:
        yield
    finally:
        _display = before


def display_for(console: Console) -> Display:
    """Bars where the console is a terminal, else plain lines."""
    if console.is_terminal:
        return Bars(console)
    return Lines(lambda line: console.print(line, markup=False))


@contextmanager
def work(kind: str, total: float, unit: str) -> Iterator[None]:
    """Show the steps of `kind` reported inside the block, out of `total` units (0: unknown); else in the run's log."""
    display = _shown()
    display.begin(kind, total, unit)

    def listener(progress: Progress) -> None:
        if progress.kind != kind:
            return
        if progress.note:
            display.note(kind, progress.note)
        if progress.step:
            display.advance(kind, progress.step, progress.restored)

    try:
        with listening(listener):
            yield
    finally:
        display.end(kind)


def waiting(what: str) -> AbstractContextManager[object]:
    """Show that this goes on, inside the block; its end cannot be told."""
    return _shown().waiting(what)


def _shown() -> Display:
    return _display or Lines(_run_log(), _LOG_EVERY_S)


def _run_log() -> Callable[[str], None]:
    from prefect import get_run_logger

    return get_run_logger().info
