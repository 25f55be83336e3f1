"""Windows: texts cut into documents of token ids, the unit that a model reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from storage.errors import CorpusError, UnknownName, UsageError

if TYPE_CHECKING:
    from tasks.corpora.readers import Text

BOS_POLICIES = ("auto", "always", "never")
TOO_SHORT = "shorter_than_two_tokens"
"""Left out: nothing can be predicted in it."""


@dataclass(frozen=True)
class WindowSettings:
    """How texts become documents."""

    window: int
    """Tokens in a document at most, its BOS token included."""
    stride: int | None = None
    """Tokens of text between the beginnings of two windows; None is as many as a window takes, without overlap. A BOS
    token takes one place of the window, so a larger stride comes down to what the window takes: no token is skipped."""
    bos: str = "auto"
    """auto: a BOS token in front of each document if the tokenizer puts one in front of a text; always; never."""
    max_documents: int | None = None

    def check(self) -> WindowSettings:
        """Itself, or UsageError naming the value that cannot be."""
        where = "window settings"
        if self.window < 2:
            raise UsageError("a window of at least 2 tokens", got=str(self.window), where=where)
        if self.stride is not None and not 1 <= self.stride <= self.window:
            raise UsageError(
                f"a stride from 1 to the window ({self.window})",
                got=str(self.stride),
                where=where,
                remedy="A longer stride would skip text; leave it out for windows side by side.",
            )
        if self.bos not in BOS_POLICIES:
            raise UnknownName.among("BOS policy", self.bos, BOS_POLICIES, where=where)
        if self.max_documents is not None and self.max_documents < 1:
            raise UsageError("a cap of at least 1 document", got=str(self.max_documents), where=where)
        return self


@dataclass(frozen=True)
class Document:
    """One window of tokens."""

    token_ids: np.ndarray
    """(T,) int32, 2 ≤ T ≤ window."""
    source: str
    """Where its text came from."""
    start: int = 0
    """Position of its first token (BOS aside) among the tokens of that text."""


@dataclass(frozen=True)
class WindowResult:
    """The documents of a corpus, in corpus order, and what was left out of them."""

    documents: list[Document]
    left_out: dict[str, int] = field(default_factory=lambda: {TOO_SHORT: 0})
    """Reason → windows left out."""
    n_texts: int = 0
    """Texts read; reading ends where the cap is reached."""


def windows(
    texts: Iterable[Text],
    encode: Callable[[str], list[int]],
    settings: WindowSettings,
    bos_id: int | None,
    adds_bos: bool,
    vocab_size: int,
) -> WindowResult:
    """Cut every text into windows; a window never spans two texts.

    encode: text → token ids, with or without the BOS token that the tokenizer adds.
    bos_id: the id of that token; None if the tokenizer has none.
    adds_bos: whether the tokenizer puts it in front of a text.
    vocab_size: ids are below this.
    Raises: UsageError (settings; a BOS token wanted where there is none), CorpusError (no text, no document of two
    tokens, an id that is no token of the model).
    """
    settings.check()
    starts_with = _bos_of(settings, bos_id, adds_bos)
    documents: list[Document] = []
    left_out = {TOO_SHORT: 0}
    n_texts = 0
    for text in texts:
        n_texts += 1
        ids = _encoded(text, encode, bos_id if adds_bos else None, vocab_size)
        for start, token_ids in cut(ids, settings, starts_with):
            if len(token_ids) < 2:
                left_out[TOO_SHORT] += 1
                continue
            documents.append(Document(token_ids, text.source, start))
            if len(documents) == settings.max_documents:
                return WindowResult(documents, left_out, n_texts)
    if not documents:
        raise CorpusError(
            "a corpus with at least one document of two tokens",
            got=f"{n_texts} texts, each shorter" if n_texts else "no text at all",
            remedy="Give a longer text, or another --field."
            if n_texts
            else "Look at what --corpus names: it is empty.",
        )
    return WindowResult(documents, left_out, n_texts)


def _bos_of(settings: WindowSettings, bos_id: int | None, adds_bos: bool) -> int | None:
    """The token that every document begins with; None for none."""
    if settings.bos == "never" or (settings.bos == "auto" and not adds_bos):
        return None
    if bos_id is None:
        raise UsageError(
            "a tokenizer with a BOS token",
            got="one without",
            where=f"BOS policy '{settings.bos}'",
            remedy="Use --bos never.",
        )
    return bos_id


def _encoded(text: Text, encode: Callable[[str], list[int]], added: int | None, vocab_size: int) -> np.ndarray:
    """(n,) int32 ids of the text without the BOS token that the tokenizer `added`."""
    ids = np.asarray(encode(text.text), dtype=np.int64)
    if added is not None and len(ids) and ids[0] == added:
        ids = ids[1:]
    wrong = np.flatnonzero((ids < 0) | (ids >= vocab_size))
    if len(wrong):
        raise CorpusError(
            f"token ids from 0 to {vocab_size - 1}, the model's vocabulary",
            got=f"id {ids[wrong[0]]}",
            where=f"{text.source}, token {wrong[0]}",
            remedy="The tokenizer is of another model: give the one that belongs to it.",
        )
    return ids.astype(np.int32)


def cut(ids: np.ndarray, settings: WindowSettings, bos: int | None) -> Iterator[tuple[int, np.ndarray]]:
    """(start, window) of one text: the windows that together hold every token, the last one shorter.

    A window whose text begins with the BOS token already gets no second one. An empty text gives one window that holds
    nothing but its BOS token.
    """
    start = 0
    while True:
        has_bos = bos is None or (start < len(ids) and ids[start] == bos)
        head = [] if has_bos else [bos]
        taken = ids[start : start + settings.window - len(head)]
        yield start, np.concatenate([np.asarray(head, dtype=np.int32), taken])
        if start + len(taken) >= len(ids):
            return
        start += min(settings.stride or settings.window, len(taken))
