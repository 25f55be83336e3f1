"""Windows: texts cut into documents of token ids, the unit that a model reads; a piece in memory at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from storage.errors import CorpusError, UnknownName, UsageError

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
            raise UsageError("a cap of at least 1 document", got=str(self.max_documents), where=where)
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
        tokenize: Callable[[Iterable[str]], Iterable[np.ndarray]],
        settings: WindowSettings,
        bos: int | None,
        vocab_size: int,
    ) -> None:
        """Cut every text into windows; a window never spans two texts.

        tokenize: the pieces of one text → its token ids, no special token among them.
        bos: the token that every document begins with; None for none.
        vocab_size: ids are below this.
        Raises UsageError (settings). While cutting: CorpusError (no text, no document of two tokens, an id that is no
        token of the model).
        """
        self._texts, self._settings = texts, settings.check()
        self._tokenize, self._bos, self._vocab_size = tokenize, bos, vocab_size
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
        texts = iter(self._texts)
        for text in texts:
            self.n_texts += 1
            cutter, before = Cutter(self._settings, self._bos), 0
            for ids in self._tokenize(_pieces(text, texts)):
                for start, token_ids in cutter.cut(self._checked(ids, text.source, before), ends=False):
                    yield Document(token_ids, text.source, start)
                before += len(ids)
            for start, token_ids in cutter.cut(np.empty(0, np.int32), ends=True):
                yield Document(token_ids, text.source, start)

    def _checked(self, ids: np.ndarray, source: str, before: int) -> np.ndarray:
        """(n,) int32, of which `before` came already."""
        wrong = np.flatnonzero((ids < 0) | (ids >= self._vocab_size))
        if len(wrong):
            raise CorpusError(
                f"token ids from 0 to {self._vocab_size - 1}, the model's vocabulary",
                got=f"id {ids[wrong[0]]}",
                where=f"{source}, token {before + wrong[0]}",
                remedy="The tokenizer is of another model: give the one that belongs to it.",
            )
        return ids.astype(np.int32)


def _pieces(text: Text, following: Iterator[Text]) -> Iterator[str]:
    """The pieces of one text, of which the first is here and the others follow."""
    yield text.text
    while text.more:
        text = next(following)
        yield text.text


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


def bos_of(policy: str, named: int | None, front: Sequence[int]) -> int | None:
    """The token that every document begins with under a policy (auto, always, never); None for none.

    named: the BOS token that the tokenizer names; front: the tokens that it puts in front of a text by itself, of which
    a single one is its BOS token, whatever it names.
    Raises UsageError where one is wanted of a tokenizer that has none, and for auto where several are in front.
    """
    where = f"BOS policy '{policy}'"
    if policy == "never" or (policy == "auto" and not front):
        return None
    if policy == "auto" and len(front) > 1:
        always = "" if named is None else ", or --bos always for the BOS token that it names"
        raise UsageError(
            "a tokenizer that puts one token in front of a text",
            got=f"one that puts {len(front)} there (ids {', '.join(map(str, front))})",
            where=where,
            remedy=f"Use --bos never{always}.",
        )
    if len(front) == 1:
        return front[0]
    if named is None:
        raise UsageError("a tokenizer with a BOS token", got="one without", where=where, remedy="Use --bos never.")
    return named


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
