"""The text of a training run: its vocabulary, its two parts, and the windows of a step."""

from __future__ import annotations

import hashlib
import string
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from storage.errors import CorpusError
from tasks.training.settings import TrainSettings

UNKNOWN, BEGIN = "<unk>", "<s>"
SPECIAL = (UNKNOWN, BEGIN)
PRINTABLE = sorted(set(string.printable) - set("\r\x0b\x0c"))
"""Printable ASCII, newline and tab: in every vocabulary, so that a model reads English that it was not trained on."""
BETWEEN_DOCUMENTS = "\n\n"


@dataclass(frozen=True)
class TrainingText:
    """Characters as ids, split into what is trained on and what is held out."""

    vocabulary: list[str]
    """The special tokens, then the characters in the order of their code points; the index is the id."""
    train: np.ndarray
    """(n,) int64 ids."""
    held_out: np.ndarray
    """(m,) int64 ids: the end of the text."""
    digest: str
    """SHA-256 of the text as UTF-8."""


def training_text(documents: Iterable[str], settings: TrainSettings) -> TrainingText:
    """Join the documents with a blank line, number the characters and split off the end.

    Raises CorpusError when either part is shorter than one window.
    """
    text = BETWEEN_DOCUMENTS.join(documents)
    vocabulary = [*SPECIAL, *sorted({*PRINTABLE, *text})]
    number = {character: i for i, character in enumerate(vocabulary)}
    ids = np.fromiter((number[c] for c in text), dtype=np.int64, count=len(text))
    split = len(ids) - int(len(ids) * settings.held_out)
    for name, part in (("trained on", ids[:split]), ("held out", ids[split:])):
        if len(part) <= settings.context:
            raise CorpusError(
                f"more than {settings.context} characters to be {name} (one window and the character after it)",
                got=f"{len(part)} of {len(ids)} characters",
                where="the training text",
                remedy="Give more text, a shorter context or another held-out share.",
            )
    digest = hashlib.sha256(text.encode()).hexdigest()
    return TrainingText(vocabulary, ids[:split], ids[split:], digest)


def batch_of(text: TrainingText, settings: TrainSettings, step: int) -> np.ndarray:
    """(batch, context + 1) ids of one step: windows at places drawn from (seed, step) alone.

    Nothing is carried from step to step, so a resumed run sees what an undisturbed one sees.
    """
    draw = np.random.default_rng([settings.seed, step])
    starts = draw.integers(0, len(text.train) - settings.context, size=settings.batch)
    return text.train[starts[:, None] + np.arange(settings.context + 1)]


def held_out_windows(text: TrainingText, settings: TrainSettings, most: int | None = None) -> list[np.ndarray]:
    """Windows of context + 1 ids, each beginning where the last one ended: every character but the first is predicted
    once. The last window may be shorter. With `most`, that many windows evenly spread over the held-out part."""
    starts = range(0, len(text.held_out) - 1, settings.context)
    if most is not None and len(starts) > most:
        starts = range(0, starts[-1], settings.context * (len(starts) // most))[:most]
    return [text.held_out[s : s + settings.context + 1] for s in starts]
