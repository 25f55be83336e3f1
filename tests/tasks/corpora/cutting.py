"""A whole corpus at once, for tests: production reads it as a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tasks.corpora.files import expand, files_digest
from tasks.corpora.pieces import PieceTokenizer
from tasks.corpora.readers import Text
from tasks.corpora.windows import Document, WindowSettings, WindowStream, bos_of


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
) -> Cut:
    """encode: adds no special token; bos_id: the BOS token; adds_bos: whether the tokenizer puts it in front."""
    bos = bos_of(settings.check().bos, bos_id, [bos_id] if adds_bos and bos_id is not None else [])
    stream = WindowStream(texts, PieceTokenizer(encode), settings, bos, vocab_size)
    return Cut(list(stream), stream.left_out, stream.n_texts)


def corpus_digest(paths: Sequence[str], field: str | None = None) -> str:
    return files_digest(expand(paths), field)
