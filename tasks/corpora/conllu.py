"""CoNLL-U (https://universaldependencies.org/format.html): one document a sentence, as its writer wrote it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from storage.errors import CorpusError
from tasks.corpora.files import CorpusFile
from tasks.corpora.lines import read_lines

COLUMNS = 10
DIGITS = 9
"""The most that a number may have: more are damage, not a sentence of so many words."""
WORD = re.compile(rf"(\d{{1,{DIGITS}}})(?:-(\d{{1,{DIGITS}}})|\.(\d+))?")
"""A word `7`, a multi-word token `7-8` (the written form of the words 7 and 8), an empty node `7.1` (not written)."""
COMMENT = re.compile(r"#\s*(text|sent_id)\s*=\s?(.*)")


@dataclass(frozen=True)
class Word:
    """One word as it is annotated: FORM, UPOS and HEAD."""

    form: str
    upos: str
    head: str
    """The number of the word that it depends on, 0 of the root; `_` where none is said."""


@dataclass(frozen=True)
class Written:
    """One written form: a word, or the multi-word token that stands for several."""

    form: str
    first: int
    last: int
    """The words that it is of, counted from 0."""


@dataclass
class Sentence:
    """One sentence on its way in."""

    line: int
    comments: dict[str, str] = field(default_factory=dict)
    forms: list[str] = field(default_factory=list)
    """Written forms, each with the space after it if there is one."""
    words: list[Word] = field(default_factory=list)
    written: list[Written] = field(default_factory=list)
    covered: int = 0
    """Words up to this one belong to the last multi-word token."""
    covered_line: int = 0
    """Where that token stands."""

    def text(self) -> str:
        """What `# text =` says; without it, the written forms joined."""
        return self.comments.get("text", "".join(self.forms).rstrip(" "))

    def place(self, file: CorpusFile) -> str:
        """What rows in tables call it: the file's name, and its `sent_id`, or the line it begins on."""
        return f"{file.name}:{self.comments.get('sent_id', self.line)}"


def read_sentences(file: CorpusFile) -> Iterator[Sentence]:
    """Every sentence. Raises CorpusError, naming the line, where the file is not CoNLL-U."""
    sentence: Sentence | None = None
    for number, line in read_lines(file):
        if not line.strip():
            if sentence is not None and sentence.written:
                yield _whole(sentence, file)
                sentence = None
            continue
        sentence = sentence or Sentence(number)
        if line.startswith("#"):
            if match := COMMENT.fullmatch(line):
                sentence.comments[match[1]] = match[2]
        else:
            _add_word(sentence, file, number, line)
    if sentence is not None and sentence.written:
        yield _whole(sentence, file)


def _whole(sentence: Sentence, file: CorpusFile) -> Sentence:
    """The sentence itself; CorpusError where its last multi-word token is of more words than there are."""
    if sentence.covered > len(sentence.words):
        raise _wrong_range(sentence, f"a sentence of {len(sentence.words)} words", file, sentence.covered_line)
    return sentence


def _wrong_range(sentence: Sentence, got: str, file: CorpusFile, number: int) -> CorpusError:
    return CorpusError(
        "a multi-word token of the words that follow it",
        got=got,
        where=file.place(number),
        remedy="Mend or remove that sentence: the range names its first and last word, which come after it.",
    )


def _add_word(sentence: Sentence, file: CorpusFile, number: int, line: str) -> None:
    columns = line.split("\t")
    match = WORD.fullmatch(columns[0])
    if len(columns) != COLUMNS or match is None or (columns[6].isdecimal() and len(columns[6]) > DIGITS):
        head = f", the seventh '{columns[6][:20]}'" if len(columns) == COLUMNS else ""
        raise CorpusError(
            f"a CoNLL-U word: {COLUMNS} columns separated by tabs, the first one its number, the seventh its head's, "
            f"of at most {DIGITS} digits",
            got=f"{len(columns)} column(s), the first '{columns[0][:20]}'{head}",
            where=file.place(number),
            remedy="Mend or remove that sentence.",
        )
    first, last, empty = match.groups()
    if empty is not None:
        return
    if last is not None:
        at = len(sentence.words)
        if sentence.covered > at or int(first) != at + 1 or int(last) < int(first):
            raise _wrong_range(sentence, f"{first}-{last} after word {at}", file, number)
        sentence.covered, sentence.covered_line = int(last), number
    else:
        sentence.words.append(Word(columns[1], columns[3], columns[6]))
        if int(first) != len(sentence.words):
            raise CorpusError(
                f"word {len(sentence.words)} of the sentence",
                got=f"word {first}",
                where=file.place(number),
                remedy="Words are numbered from 1 without a gap; a blank line ends a sentence.",
            )
        if len(sentence.words) <= sentence.covered:
            return
    sentence.written.append(Written(columns[1], int(first) - 1, int(last or first) - 1))
    glued = "SpaceAfter=No" in columns[9].split("|")
    sentence.forms.append(columns[1] if glued else f"{columns[1]} ")


def read_conllu(file: CorpusFile) -> Iterator[tuple[str, str]]:
    """(text, place) of every sentence; the place is its `sent_id`, or the line it begins on."""
    for sentence in read_sentences(file):
        yield sentence.text(), sentence.place(file)
