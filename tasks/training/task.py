"""Training as a Prefect task: names and numbers go in, a record comes out; the model stays in its folder."""

from __future__ import annotations

import time

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

from tasks.corpora.readers import read_texts
from tasks.training.loop import TrainResult, train
from tasks.training.progress import Listener, MeasureListener, MeasureProgress, TrainProgress, listeners
from tasks.training.settings import TrainSettings

SECONDS_BETWEEN_LINES = 30.0


@task(name="train_model", cache_policy=NO_CACHE, persist_result=False)
def train_model(
    text: list[str], out: str, field: str | None, settings: TrainSettings, checkpoint_every: int
) -> TrainResult:
    """Train a character model on the texts of files, folders or patterns into the folder `out`.

    Told to whoever listens (`tasks.training.progress.listening`), else to the run's log every half minute.
    Raises: as `tasks.training.loop.train`, and CorpusError for text that cannot be read.
    """
    documents = (t.text for t in read_texts(text, field))
    progress, measuring = listeners() or _log_lines()
    return train(documents, out, settings, checkpoint_every=checkpoint_every, progress=progress, measuring=measuring)


def _log_lines() -> tuple[Listener, MeasureListener]:
    logger = get_run_logger()
    told = time.perf_counter()

    def due() -> bool:
        nonlocal told
        if time.perf_counter() - told < SECONDS_BETWEEN_LINES:
            return False
        told = time.perf_counter()
        return True

    def tell(now: TrainProgress) -> None:
        if not due():
            return
        logger.info(
            "step %d of %d, %.3f nats per character, %.0f characters/s, %.0f s left",
            now.step,
            now.steps,
            now.loss,
            now.characters_per_second,
            now.seconds_left,
        )

    def tell_measured(now: MeasureProgress) -> None:
        if due():
            logger.info("measuring the held-out text: %d of %d windows", now.windows, now.of)

    return tell, tell_measured
