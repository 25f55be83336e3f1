"""A whole corpus at once, for tests: production reads it as a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tasks.corpora.files import expand, files_digest
from tasks.corpora.readers import Text
from tasks.corpora.windows import Document, WindowSettings, WindowStream


@dataclass(frozen=True)
class Cut:
    documents: list[Document]
    left_out: dict[str, int]
    n_texts: int


def windows(
    texts: Iterable[Text],
    encode: Callable[[str], list[int]],
    settings: WindowSettings,
    bos_id: int | None,
    adds_bos: bool,
    vocab_size: int,
    encode_adds: bool | None = None,
) -> Cut:
    stream = WindowStream(texts, encode, settings, bos_id, adds_bos, vocab_size, encode_adds)
    return Cut(list(stream), stream.left_out, stream.n_texts)


def corpus_digest(paths: Sequence[str], field: str | None = None) -> str:
    return files_digest(expand(paths), field)
