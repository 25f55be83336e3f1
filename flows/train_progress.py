"""How far a training run is: its steps, then the measuring of the held-out text, and what an interruption costs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from flows.progress import work
from tasks.progress import Progress, emit
from tasks.training.progress import MeasureProgress, TrainProgress, listening

TRAIN, MEASURE = "train", "measure"


class TrainingTold:
    """Passes training's own progress on, as pieces of work that follow on one another."""

    def __init__(self, steps: int, checkpoint_every: int) -> None:
        self._steps, self._every = steps, checkpoint_every
        self._began: int | None = None
        self._done = self._measured = 0

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the progress that is reported inside the block."""
        with ExitStack() as self._work, listening(self.step, self.measure):
            self._work.enter_context(work(TRAIN, self._steps, "steps"))
            try:
                yield
            except KeyboardInterrupt:
                self._cost()
                raise

    def step(self, now: TrainProgress) -> None:
        """A step was done; the first tells how many an earlier try did."""
        if self._began is None:
            self._began = self._done = now.step - 1
            note = f"goes on from step {self._began:,} of {now.steps:,}" if self._began else ""
            emit(Progress(TRAIN, self._began, "steps", restored=True, note=note))
        emit(Progress(TRAIN, now.step - self._done, "steps"))
        self._done = now.step

    def measure(self, now: MeasureProgress) -> None:
        """Windows of the held-out text were measured; the first is reported before it begins."""
        if now.windows == 0:
            self._work.close()
            self._work.enter_context(work(MEASURE, now.of, "windows"))
        emit(Progress(MEASURE, now.windows - self._measured, "windows"))
        self._measured = now.windows

    def _cost(self) -> None:
        """Say what is done again after an interruption: what came after the last checkpoint."""
        if self._began is None or self._done == self._steps:
            return
        kept = max(self._began, self._done - self._done % self._every)
        again = self._done - kept
        note = f"stopped after step {self._done:,}; the same command goes on from the checkpoint of step {kept:,}"
        emit(Progress(TRAIN, 0, "", note=f"{note} and repeats {again:,}" if again else note))
