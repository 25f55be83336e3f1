"""Readers: a corpus as a stream of texts, whatever files it lies in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from storage.errors import UnknownName
from tasks.corpora.conllu import read_conllu
from tasks.corpora.files import CorpusFile, expand
from tasks.corpora.lines import read_chunks
from tasks.corpora.pieces import PIECE, pieces
from tasks.corpora.rows import DEFAULT_FIELD, read_dataset, read_jsonl, read_parquet
from tasks.corpora.topics import PYTHON_TOPICS, python_topics


@dataclass(frozen=True)
class Text:
    """One text of a corpus: a file, a row, a sentence or a topic; or a piece of a long one."""

    text: str
    source: str
    """Where it came from: the file's name, with `:` and the line, row (from 0) or sentence inside it."""
    more: bool = False
    """Whether the next one goes on with the same text."""


def read_texts(paths: Sequence[str], field: str | None = None) -> Iterator[Text]:
    """The texts of files, folders and patterns, in an order that is the same everywhere, read as they are asked for.

    A text file is one text; JSON Lines, Parquet and data sets give one a row; CoNLL-U one a sentence; `python-topics`
    one a topic. Each is whole, in memory one at a time; `read_files` gives long ones in pieces.

    paths: files, folders, patterns, `s3://bucket/prefix`, `hf:NAME`, or `python-topics`.
    field: the field that holds the text of a row, or several joined by + (question+answer), which are then its lines;
    None takes `text`, or the only string field there is.
    Raises, at once: UsageError or CorpusError for names that stand for no file. While reading: CorpusError naming the
    file and line that cannot be read, UnknownName for a field that is not there.
    """
    return _whole(read_files(expand(paths), field))


def _whole(texts: Iterable[Text]) -> Iterator[Text]:
    held: list[str] = []
    for text in texts:
        held.append(text.text)
        if not text.more:
            yield Text("".join(held), text.source)
            held = []


def read_files(files: Sequence[CorpusFile], field: str | None) -> Iterator[Text]:
    """The texts of these files in pieces of at most 2^20 characters, so that none is in memory as a whole.

    Raises as `read_texts` does while reading.
    """
    for file in files:
        for chunks, source in _read(file, field):
            for piece, more in pieces(chunks, PIECE):
                yield Text(piece, source, more)


def _read(file: CorpusFile, field: str | None) -> Iterator[tuple[Iterable[str], str]]:
    """(a text in chunks, its place)."""
    if file.kind == "text" and field in (None, DEFAULT_FIELD):
        return iter([(read_chunks(file), file.name)])
    return (((text,), source) for text, source in _rows(file, field))


def _rows(file: CorpusFile, field: str | None) -> Iterator[tuple[str, str]]:
    if file.kind == "jsonl":
        return read_jsonl(file, field)
    if file.kind == "parquet":
        return read_parquet(file, field)
    if file.kind == "dataset":
        return read_dataset(file, field)
    if field not in (None, DEFAULT_FIELD):
        raise UnknownName.among("field", field or "", [DEFAULT_FIELD], where=f"{file.place()} (it has no fields)")
    if file.kind == "conllu":
        return read_conllu(file)
    return ((text, f"{PYTHON_TOPICS}:{topic}") for topic, text in python_topics())
