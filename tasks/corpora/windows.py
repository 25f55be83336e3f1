"""Windows: texts cut into documents of token ids, the unit that a model reads; a piece in memory at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from storage.errors import CorpusError, UnknownName, UsageError
from tasks.corpora.pieces import context

if TYPE_CHECKING:
    from tasks.corpora.readers import Text

BOS_POLICIES = ("auto", "always", "never")
TOO_SHORT = "shorter_than_two_tokens"
"""Left out: nothing can be predicted in it."""
REPEATED = "repeated"
"""Left out on request: a document with the same token ids came before it."""


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
    deduplicate: bool = False
    """Leave out a document whose token ids are those of a document before it."""

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
            raise UsageError("at most some number of documents from 1 on", got=str(self.max_documents), where=where)
        return self


NO_TOKEN = -1
"""In place of the id of a token that has none, such as a patch of an image."""


@dataclass(frozen=True)
class Document:
    """One window of tokens, or one image."""

    token_ids: np.ndarray
    """(T,) int32, 2 ≤ T ≤ window; of an image, NO_TOKEN everywhere."""
    source: str
    """Where its text came from."""
    start: int = 0
    """Position of its first token (BOS aside) among the tokens of that text."""
    pixels: np.ndarray | None = None
    """Of an image, (3, H, W) float32 as the model takes it."""

    @property
    def inputs(self) -> np.ndarray:
        """What the model is given: the token ids, or the pixels."""
        return self.token_ids if self.pixels is None else self.pixels


class WindowStream:
    """The documents of a corpus, cut as they are asked for; `left_out` and `n_texts` say what was read so far.

    In memory are one piece of a text with its tokens, and 16 bytes a document where repeated ones are left out.
    """

    def __init__(
        self,
        texts: Iterable[Text],
        encode: Callable[[str], list[int]],
        settings: WindowSettings,
        bos_id: int | None,
        adds_bos: bool,
        vocab_size: int,
        encode_adds: bool | None = None,
    ) -> None:
        """Cut every text into windows; a window never spans two texts.

        encode: text → token ids.
        bos_id: the id of the BOS token; None if the tokenizer has none.
        adds_bos: whether the tokenizer puts it in front of a text.
        vocab_size: ids are below this.
        encode_adds: whether `encode` puts it there; by default as `adds_bos` says.
        Raises UsageError (settings; a BOS token wanted where there is none). While cutting: CorpusError (no text, no
        document of two tokens, an id that is no token of the model).
        """
        self._texts, self._settings = texts, settings.check()
        self._bos = bos_of(settings.bos, bos_id, adds_bos)
        encode_adds = adds_bos if encode_adds is None else encode_adds
        self._encode, self._added, self._vocab_size = encode, bos_id if encode_adds else None, vocab_size
        self.left_out = {TOO_SHORT: 0, **({REPEATED: 0} if settings.deduplicate else {})}
        self.n_texts = 0
        self._seen = Seen() if settings.deduplicate else None

    def __iter__(self) -> Iterator[Document]:
        found = 0
        for document in self._cut():
            if len(document.token_ids) < 2:
                self.left_out[TOO_SHORT] += 1
            elif self._seen is not None and self._seen.has(document):
                self.left_out[REPEATED] += 1
            else:
                found += 1
                yield document
                if found == self._settings.max_documents:
                    return
        if not found:
            raise CorpusError(
                "a corpus with at least one document of two tokens",
                got=f"{self.n_texts} texts, each shorter" if self.n_texts else "no text at all",
                remedy="Give a longer text, or another --field."
                if self.n_texts
                else "Look at what --corpus names: it is empty.",
            )

    def _cut(self) -> Iterator[Document]:
        cutter, before = Cutter(self._settings, self._bos), None
        for text in self._texts:
            self.n_texts += before is None
            ids = self._ids(text, before)
            for start, token_ids in cutter.cut(ids, ends=not text.more):
                yield Document(token_ids, text.source, start)
            if text.more:
                before = context(text.text)
            else:
                cutter, before = Cutter(self._settings, self._bos), None

    def _ids(self, text: Text, before: str | None) -> np.ndarray:
        """(n,) int32 ids of a text or piece, without the BOS token that the tokenizer adds.

        A piece is tokenised behind the end of the piece `before`, whose ids are then taken off: some tokenizers put a
        token of their own in front of whatever they are given. Where they join the two, the piece is tokenised alone.
        """
        if before is not None:
            both, shown = self._encoded(before + text.text), self._encoded(before)
            if np.array_equal(both[: len(shown)], shown):
                return self._checked(both[len(shown) :], text)
        return self._checked(self._encoded(text.text), text)

    def _encoded(self, text: str) -> np.ndarray:
        ids = np.asarray(self._encode(text), dtype=np.int64)
        return ids[1:] if self._added is not None and len(ids) and ids[0] == self._added else ids

    def _checked(self, ids: np.ndarray, text: Text) -> np.ndarray:
        wrong = np.flatnonzero((ids < 0) | (ids >= self._vocab_size))
        if len(wrong):
            raise CorpusError(
                f"token ids from 0 to {self._vocab_size - 1}, the model's vocabulary",
                got=f"id {ids[wrong[0]]}",
                where=f"{text.source}, token {wrong[0]}",
                remedy="The tokenizer is of another model: give the one that belongs to it.",
            )
        return ids.astype(np.int32)


class Seen:
    """The inputs of the documents that came before, 16 bytes each."""

    def __init__(self) -> None:
        self._digests: set[bytes] = set()

    def has(self, document: Document) -> bool:
        """Whether a document with the same inputs came before; this one did from now on."""
        digest = hashlib.blake2b(np.ascontiguousarray(document.inputs).tobytes(), digest_size=16).digest()
        known = digest in self._digests
        self._digests.add(digest)
        return known


def bos_of(policy: str, bos_id: int | None, adds_bos: bool) -> int | None:
    """The token that every document begins with under a policy (auto, always, never); None for none.

    Raises UsageError where one is wanted of a tokenizer that has none.
    """
    if policy == "never" or (policy == "auto" and not adds_bos):
        return None
    if bos_id is None:
        raise UsageError(
            "a tokenizer with a BOS token",
            got="one without",
            where=f"BOS policy '{policy}'",
            remedy="Use --bos never.",
        )
    return bos_id


class Cutter:
    """Cuts one text whose ids come in pieces into the windows that together hold every token, the last one shorter.

    A window whose text begins with the BOS token already gets no second one. An empty text gives one window that holds
    nothing but its BOS token.
    """

    def __init__(self, settings: WindowSettings, bos: int | None) -> None:
        self._settings, self._bos = settings, bos
        self._ids, self._start = np.empty(0, dtype=np.int32), 0

    def cut(self, ids: np.ndarray, *, ends: bool) -> Iterator[tuple[int, np.ndarray]]:
        """(start, window) of every window that is complete with these ids; of all, where the text `ends` with them."""
        self._ids = np.concatenate([self._ids, ids])
        while True:
            has_bos = self._bos is None or (len(self._ids) > 0 and self._ids[0] == self._bos)
            head = [] if has_bos else [self._bos]
            room = self._settings.window - len(head)
            if not ends and len(self._ids) <= room:
                return
            taken = self._ids[:room]
            yield self._start, np.concatenate([np.asarray(head, dtype=np.int32), taken])
            if len(taken) >= len(self._ids):
                return
            step = min(self._settings.stride or self._settings.window, len(taken))
            self._ids, self._start = self._ids[step:], self._start + step
