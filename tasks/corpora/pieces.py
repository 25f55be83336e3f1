"""A long text in pieces whose tokens are those of the whole, so that neither has to be in memory at once."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from storage.errors import CorpusError

PIECE = 1 << 20
"""Characters of a piece at most."""

OVERLAP = 1 << 13
"""Characters of a piece that are tokenised again with the next one."""

AGREED = 8
"""Tokens on either side of a cut that both pieces must have alike."""


class Spans(Protocol):
    """The tokens of a text: their ids, the characters (first, behind the last) and the stretch that each is of."""

    @property
    def ids(self) -> Sequence[int]: ...
    @property
    def offsets(self) -> Sequence[tuple[int, int]]: ...
    @property
    def words(self) -> Sequence[int | None]: ...


def pieces(chunks: Iterable[str], size: int = PIECE) -> Iterator[tuple[str, bool]]:
    """(piece, whether more follows) of a text that comes in chunks: `size` characters each, the last one at most."""
    held = ""
    for chunk in chunks:
        held += chunk
        at = 0
        while len(held) - at > size:
            yield held[at : at + size], True
            at += size
        held = held[at:]
    yield held, False


@dataclass(frozen=True)
class PieceTokenizer:
    """Turns a text that comes in pieces into the ids of the whole, piece by piece.

    Each piece is tokenised with the end of the one before. The ids go over from the one to the other at a place well
    inside what both have, where AGREED tokens on either side are the same, their characters too, and

    - the tokenizer itself cuts the text before it looks words up, in both. Expressions that cut go through a text from
      the left, so from a common cut on they cut alike, and each stretch is looked up by itself; or
    - its model is BPE, whose ids are right wherever each two neighbours are, and all neighbours are in one of the two.

    Where there is no such place the two become one piece, in the end the whole text. So does a text whose tokenizer
    does not say which characters a token stands for. What the tokenizer looks at around a place must be nearer than a
    quarter of the overlap.
    """

    encode: Callable[[str], Sequence[int]]
    spans: Callable[[str], Spans] | None = None
    merges: bool = False
    """Whether the tokenizer's model is BPE."""
    overlap: int = OVERLAP

    def __call__(self, texts: Iterable[str]) -> Iterator[np.ndarray]:
        """The ids of a text, (n,) int64 each, one after the other. Raises CorpusError where none can be told apart."""
        left = iter(texts)
        text, following = next(left), next(left, None)
        if following is None or self.spans is None:
            yield _ids(self.encode("".join([text, following or "", *left])))
            return
        held, known = self.spans(text), 0
        while following is not None:
            both = text[-self.overlap :] + following
            later = self.spans(both)
            cut = self._cut(held, later, len(text) + len(following) - len(both), len(text))
            if cut is None:
                text = _grown(text, following, left)
                held = _same(held, self.spans(text), known)
            else:
                yield _ids(held.ids[known : cut[0]])
                text, held, known = both, later, cut[1]
            following = next(left, None)
        yield _ids(held.ids[known:])

    def _cut(self, held: Spans, later: Spans, shift: int, end: int) -> tuple[int, int] | None:
        """(token of the one, token of the other) from which on the ids are the other's; None where there is no place.

        shift: characters of the one in front of the other; end: of the one.
        """
        margin = (end - shift) // 4
        first, last = (bisect_left(held.offsets, at, key=_start) for at in (shift + margin, end - margin))
        middle, weaker = (first + last) // 2, None
        for at in sorted(range(first + AGREED, last - AGREED), key=lambda i: abs(i - middle)):
            other = self._agreed(held, later, at, shift)
            if other is not None and _between_words(held, at) and _between_words(later, other):
                return at, other
            weaker = weaker or (None if other is None else (at, other))
        return weaker if self.merges else None

    def _agreed(self, held: Spans, later: Spans, at: int, shift: int) -> int | None:
        """The token of the other that a token of the one is, where both agree around it."""
        start = held.offsets[at][0]
        other = bisect_left(later.offsets, start - shift, key=_start)
        if held.offsets[at - 1][0] == start or other < AGREED:  # of several tokens of one character the first
            return None
        near, beside = slice(at - AGREED, at + AGREED), slice(other - AGREED, other + AGREED)
        moved = [(a + shift, b + shift) for a, b in later.offsets[beside]]
        same = held.ids[near] == later.ids[beside] and held.offsets[near] == moved
        return other if same else None


def _start(offsets: tuple[int, int]) -> int:
    return offsets[0]


def _between_words(spans: Spans, at: int) -> bool:
    return spans.words[at - 1] != spans.words[at]


def _grown(text: str, following: str, left: Iterator[str]) -> str:
    """The text with what follows, and with so many pieces more that it is twice as long."""
    parts, length = [text, following], len(text) + len(following)
    while length < 2 * len(text) and (piece := next(left, None)) is not None:
        parts.append(piece)
        length += len(piece)
    return "".join(parts)


def _same(held: Spans, grown: Spans, known: int) -> Spans:
    """The longer text's tokens, of which the first `known` must be those that were given already."""
    if held.ids[:known] != grown.ids[:known] or held.offsets[:known] != grown.offsets[:known]:
        raise CorpusError(
            "a tokenizer whose tokens depend on the text near them",
            got="tokens that change with text far away",
            where=f"a text of more than {PIECE:,} characters",
            remedy="Give it in files or rows of fewer characters.",
        )
    return grown


def _ids(ids: Sequence[int]) -> np.ndarray:
    return np.asarray(ids, dtype=np.int64)
