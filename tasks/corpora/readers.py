"""Readers: a corpus as a stream of texts, whatever files it lies in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from storage.errors import UnknownName
from tasks.corpora.conllu import read_conllu
from tasks.corpora.files import CorpusFile, corpus_digest, expand
from tasks.corpora.lines import read_whole
from tasks.corpora.rows import DEFAULT_FIELD, read_jsonl, read_parquet
from tasks.corpora.topics import PYTHON_TOPICS, python_topics

__all__ = ["PYTHON_TOPICS", "Text", "corpus_digest", "read_texts"]


@dataclass(frozen=True)
class Text:
    """One text of a corpus: a file, a row, a sentence or a topic."""

    text: str
    source: str
    """Where it came from: the file's name, with `:` and the line, row (from 0) or sentence inside it."""


def read_texts(paths: Sequence[str], field: str | None = None) -> Iterator[Text]:
    """The texts of files, folders and patterns, in an order that is the same everywhere, read as they are asked for.

    A text file is one text; JSON Lines and Parquet give one a row; CoNLL-U one a sentence; `python-topics` one a topic.
    A JSON Lines or Parquet file is never in memory as a whole.

    paths: files, folders, patterns, or `python-topics`.
    field: the field that holds the text of a row; None takes `text`, or the only string field there is.
    Raises, at once: UsageError or CorpusError for names that stand for no file. While reading: CorpusError naming the
    file and line that cannot be read, UnknownName for a field that is not there.
    """
    return _stream(expand(paths), field)


def _stream(files: list[CorpusFile], field: str | None) -> Iterator[Text]:
    for file in files:
        for text, source in _read(file, field):
            yield Text(text, source)


def _read(file: CorpusFile, field: str | None) -> Iterator[tuple[str, str]]:
    if file.kind == "jsonl":
        return read_jsonl(file, field)
    if file.kind == "parquet":
        return read_parquet(file, field)
    if field not in (None, DEFAULT_FIELD):
        raise UnknownName.among("field", field or "", [DEFAULT_FIELD], where=f"{file.place()} (it has no fields)")
    if file.kind == "conllu":
        return read_conllu(file)
    if file.kind == "topics":
        return ((text, f"{PYTHON_TOPICS}:{topic}") for topic, text in python_topics())
    return iter([(read_whole(file), file.name)])
