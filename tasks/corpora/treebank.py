"""A treebank's words: where each stands in its sentence's text, its part of speech, and its depth in the tree.

CoNLL-U annotates words; a text holds written forms, and a written form may be several words (don't = do + n't).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from storage.errors import CorpusError
from tasks.corpora.conllu import Sentence, Word, Written, read_sentences
from tasks.corpora.files import CorpusFile, expand

UPOS = (
    *("ADJ", "ADP", "ADV", "AUX", "CCONJ", "DET", "INTJ", "NOUN", "NUM"),
    *("PART", "PRON", "PROPN", "PUNCT", "SCONJ", "SYM", "VERB", "X"),
)
"""The universal parts of speech (https://universaldependencies.org/u/pos)."""
NONE = -1
"""In place of a part of speech, a depth or a position where there is none."""


@dataclass(frozen=True)
class TreebankSentence:
    """One sentence and its words, in order."""

    place: str
    """As `documents.source` names it."""
    text: str
    spans: tuple[tuple[int, int] | None, ...]
    """Of each word its first character in the text and the one behind its last; None where the text holds none of it.
    Words of a multi-word token that are not its parts (du = de + le) have the span of the whole."""
    pos: tuple[int, ...]
    """Which of UPOS each word is; NONE where it is none of them."""
    depths: tuple[int, ...]
    """Arcs between each word and the root of its tree, 0 of the root; NONE where its heads lead to no root."""


def treebank_files(paths: Sequence[str]) -> list[CorpusFile]:
    """The files that hold a treebank. Raises UsageError or CorpusError for what is no CoNLL-U, before it is read."""
    files = expand(paths)
    for file in files:
        if file.kind != "conllu":
            raise CorpusError(
                "a treebank in CoNLL-U (.conllu, also with .gz or .zst)",
                got=file.kind,
                where=file.place(),
                remedy="Capture a corpus of .conllu files: a text has no words that are annotated.",
            )
    return files


def read_treebank(files: Sequence[CorpusFile]) -> Iterator[TreebankSentence]:
    """Every sentence of these files, in order. Raises CorpusError, naming the line, where one is not CoNLL-U."""
    for file in files:
        for sentence in read_sentences(file):
            yield annotated(sentence, sentence.place(file))


def annotated(sentence: Sentence, place: str) -> TreebankSentence:
    """A sentence's words with what is asked of them."""
    text = sentence.text()
    pos = tuple(UPOS.index(word.upos) if word.upos in UPOS else NONE for word in sentence.words)
    return TreebankSentence(place, text, word_spans(sentence, text), pos, depths([w.head for w in sentence.words]))


def word_spans(sentence: Sentence, text: str) -> tuple[tuple[int, int] | None, ...]:
    """Where each word stands in the text: (first character, the one behind its last).

    Written forms follow one another with nothing but white space between. From a form on that the text does not hold
    there, no word of the sentence has a place: a later find would be a guess.
    """
    spans: list[tuple[int, int] | None] = [None] * len(sentence.words)
    at = 0
    for form in sentence.written:
        while at < len(text) and text[at].isspace():
            at += 1
        end = at + len(form.form)
        if _plain(text[at:end]) != _plain(form.form):
            break
        for word, span in zip(range(form.first, form.last + 1), _parts(form, sentence.words, at), strict=True):
            spans[word] = span
        at = end
    return tuple(spans)


def _plain(text: str) -> str:
    """One kind of white space: a form's space may be a no-break one in the text."""
    return "".join(" " if letter.isspace() else letter for letter in text)


def _parts(form: Written, words: Sequence[Word], at: int) -> Iterator[tuple[int, int]]:
    """The spans of the words of a written form that begins at a character: its parts, or each the whole."""
    forms = [word.form for word in words[form.first : form.last + 1]]
    if "".join(forms).casefold() != form.form.casefold():
        yield from [(at, at + len(form.form))] * len(forms)
        return
    for part in forms:
        yield at, at + len(part)
        at += len(part)


def depths(heads: Sequence[str]) -> tuple[int, ...]:
    """Arcs between each word and its root, 0 of the root; NONE where heads are absent, outside, or a ring."""
    parents = [int(head) if head.isdecimal() and int(head) <= len(heads) else None for head in heads]
    found = []
    for word in range(1, len(heads) + 1):
        depth, above = 0, parents[word - 1]
        while above and depth < len(heads):
            depth, above = depth + 1, parents[above - 1]
        found.append(depth if above == 0 else NONE)
    return tuple(found)


def last_tokens(
    spans: Sequence[tuple[int, int] | None], offsets: Sequence[tuple[int, int]]
) -> tuple[np.ndarray, np.ndarray]:
    """Of each word the last token that stands for any of its characters, (words,) int32, NONE where none does.

    And whether another word has the same last token, (words,) bool: a token that ends two words is of neither alone.
    offsets: of each token its first character and the one behind its last, in the order of the text; a token of no
    character (a mark that the tokenizer adds) stands for none.
    """
    starts = np.array([first for first, _ in offsets], np.int64)
    ends = np.array([end for _, end in offsets], np.int64)
    found = np.full(len(spans), NONE, np.int32)
    for word, span in enumerate(spans):
        if span is not None:
            there = np.flatnonzero((starts < span[1]) & (ends > span[0]) & (ends > starts))
            found[word] = there[-1] if len(there) else NONE
    _, which, times = np.unique(found, return_inverse=True, return_counts=True)
    return found, (times[which] > 1) & (found != NONE)
