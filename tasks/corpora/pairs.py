"""Minimal pairs: two sentences that differ in one thing, the first of them grammatical, in the layout of BLiMP.

JSON Lines with the fields `sentence_good` and `sentence_bad` (Warstadt et al. 2020); a file is a task.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from storage.errors import CorpusError, UsageError
from tasks.corpora.choices import file_task
from tasks.corpora.files import CorpusFile, expand
from tasks.corpora.lines import read_lines
from tasks.corpora.rows import parse_row, text_in

FIELDS = ("sentence_good", "sentence_bad")


@dataclass(frozen=True)
class Pair:
    """One pair as it is written."""

    task: str
    """The file's name without its suffixes."""
    item: int
    """Counted from 0 in the task, over its files in order."""
    place: str
    """File and line."""
    good: str
    bad: str


@dataclass(frozen=True)
class EncodedPair:
    """One pair as the model is given it: (T,) int32 each, at least two tokens, a BOS token included."""

    task: str
    item: int
    good: np.ndarray
    bad: np.ndarray
    first_scored: bool
    """Whether a BOS token stands in front, so that the first token of the sentence is scored too."""

    @property
    def sentences(self) -> tuple[np.ndarray, np.ndarray]:
        return self.good, self.bad

    @property
    def alike(self) -> bool:
        """Whether there is nothing to tell: the sentences are the same tokens."""
        return np.array_equal(self.good, self.bad)

    @property
    def scored(self) -> bool:
        """Whether both sentences have a token that is predicted."""
        return min(len(self.good), len(self.bad)) > 1


def pair_files(paths: Sequence[str]) -> list[CorpusFile]:
    """The files that hold pairs. Raises UsageError or CorpusError for what is no JSON Lines, before it is read."""
    files = expand(paths)
    places = [file.place() for file in files]
    for file in files:
        if places.count(file.place()) > 1:
            raise UsageError("each file of minimal pairs once", got="it twice or more", where=file.place())
        if file.kind != "jsonl":
            raise CorpusError(
                "minimal pairs as JSON Lines (.jsonl, also with .gz or .zst)",
                got=file.kind,
                where=file.place(),
                remedy=f"Name files with {' and '.join(FIELDS)} in each line, or a pattern such as FOLDER/*.jsonl.",
            )
    return files


def read_pairs(files: Sequence[CorpusFile], cap: int) -> Iterator[Pair]:
    """The first `cap` pairs of each task (0: all), task by task as their files come.

    Raises CorpusError, naming file and line, for an empty file, a line without both fields, and blank text.
    """
    counts: Counter[str] = Counter()
    for file in files:
        task, found = file_task(file), 0
        for number, line in read_lines(file):
            if not line.strip():
                continue
            found += 1
            if cap and counts[task] >= cap:
                break
            good, bad = _sentences(file, number, line)
            yield Pair(task, counts[task], file.place(number), good, bad)
            counts[task] += 1
        if not found:
            remedy = "The file is empty: fetch it again, or leave it out."
            raise CorpusError("at least one minimal pair", got="none", where=file.place(), remedy=remedy)


def _sentences(file: CorpusFile, number: int, line: str) -> tuple[str, str]:
    row = parse_row(file, number, line)
    found = []
    for name in FIELDS:
        text = text_in(file, number, name, row.get(name)) if row.get(name) is not None else ""
        if not text.strip():
            there = ", ".join(row) or "no field at all"
            raise CorpusError(
                f"a sentence in each of the fields {' and '.join(FIELDS)}",
                got=f"a blank {name}" if name in row else f"{there}",
                where=file.place(number),
                remedy="Minimal pairs are in the layout of BLiMP. Mend or remove that line.",
            )
        found.append(text)
    return found[0], found[1]


@dataclass(frozen=True)
class PairEncoder:
    """Turns pairs into token ids, each sentence as a text of its own."""

    encode: Callable[[str], list[int]]
    """Text → token ids, no special token among them."""
    bos: int | None
    """What stands in front of each sentence, so that its first token is scored; None for nothing."""
    positions: int | None
    """Of the model; None for no end."""

    def pair(self, pair: Pair) -> EncodedPair:
        """Raises CorpusError, naming file and line, for a sentence longer than the model's positions."""
        good, bad = (self._ids(text, pair.place) for text in (pair.good, pair.bad))
        return EncodedPair(pair.task, pair.item, good, bad, self.bos is not None)

    def _ids(self, text: str, place: str) -> np.ndarray:
        ids = self.encode(text)
        if self.bos is not None and ids[:1] != [self.bos]:
            ids = [self.bos, *ids]
        if self.positions is not None and len(ids) > self.positions:
            raise CorpusError(
                f"a sentence of at most {self.positions} tokens, the model's positions",
                got=f"{len(ids)}",
                where=place,
                remedy="Leave that line out.",
            )
        return np.array(ids, np.int32)
