"""A long text in pieces, so that neither it nor its tokens have to be in memory at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

PIECE = 1 << 20
"""Characters of a piece at most."""

CONTEXT = 4096
"""Characters of the piece before that a tokenizer is shown again, so that a piece begins as inside its text."""


def pieces(chunks: Iterable[str], size: int = PIECE) -> Iterator[tuple[str, bool]]:
    """(piece, whether more follows) of a text that comes in chunks; together they are the text.

    A piece ends after the last line end that a character other than white space follows; where there is none, before
    the last blank between two words; where there is none either, at `size` characters. A text of at most `size`
    characters is one piece.
    """
    held = ""
    for chunk in chunks:
        held += chunk
        while len(held) > size:
            at = _border(held, size)
            yield held[:at], True
            held = held[at:]
    yield held, False


def _border(text: str, size: int) -> int:
    """Where the first piece of a text longer than `size` ends."""
    at = text.rfind("\n", 0, size)
    while at >= 0:
        if not text[at + 1].isspace():
            return at + 1
        at = text.rfind("\n", 0, at)
    at = text.rfind(" ", 1, size)
    while at > 0:
        if not text[at - 1].isspace() and not text[at + 1].isspace():
            return at
        at = text.rfind(" ", 1, at)
    return size


def context(piece: str) -> str:
    """The end of a piece: its last line, or as much of it as is shown again."""
    start = piece.rfind("\n", 0, len(piece) - 1) + 1
    return piece[max(start, len(piece) - CONTEXT) :]
