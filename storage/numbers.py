"""Numbers and ranges as users write them, 0-5,10, and the query positions that a store keeps of each document."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from struct import pack, unpack

from storage.errors import UsageError

MOST = 1 << 20
"""No number or count may be as large: far beyond any layer, head or window, and small enough to write out."""


def number_set(text: str, what: str) -> tuple[int, ...]:
    """`0-5,10` as numbers, sorted, each once; UsageError for what is no list of numbers and ranges of `what`."""
    found: set[int] = set()
    for part in parts(text):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise _no_numbers(text, what)
        if (dash and int(last) < int(first)) or int(last or first) >= MOST:
            raise _no_numbers(text, what)
        found.update(range(int(first), int(last if dash else first) + 1))
    if not found:
        raise _no_numbers(text, what)
    return tuple(sorted(found))


def _no_numbers(text: str, what: str) -> UsageError:
    return UsageError(f"{what} as numbers and ranges, such as 0-5,10", got=repr(text), where=what)


def written(numbers: Iterable[int]) -> str:
    """The same numbers always in the same words: sorted, with ranges where they make one."""
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs(sorted(set(numbers))))


def spans(numbers: Sequence[int]) -> str:
    """Sorted whole numbers in words: 0–5, 10."""
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in runs(numbers))


def runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Sorted whole numbers as the first and last of each unbroken run."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


def counted(n: int, thing: str) -> str:
    """A number of things in words: `1 shard`, `2 shards`, `9,600 rows`."""
    return f"{n:,} {thing}" if n == 1 else f"{n:,} {thing}s"


def tell_apart(values: Sequence[float], what: str, where: str) -> None:
    """UsageError unless the values differ, and stay above 0 and finite, in float32, as the tables hold them."""
    single = [_single(value) for value in values]
    if any(not 0 < value < math.inf for value in single):
        raise UsageError(f"{what} above 0, as float32 holds them", got=_reprs(values), where=where)
    if len(set(single)) < len(single):
        raise UsageError(f"{what} that differ in float32, as the tables hold them", got=_reprs(values), where=where)


def _single(value: float) -> float:
    try:
        return float(unpack("f", pack("f", value))[0])
    except OverflowError:
        return math.inf


def _reprs(values: Sequence[float]) -> str:
    return ", ".join(map(repr, values))


def parts(text: str) -> list[str]:
    """What stands between commas, without blanks."""
    return [part.strip() for part in text.split(",") if part.strip()]


@dataclass(frozen=True)
class Positions:
    """Query positions of a document of any length: some from its start, some from its end, every nth.

    Written as `0-31`, `-3` (the third from the end), `last` or `last:8`, `every:16` (0, 16, 32, …), joined by commas.
    """

    numbers: tuple[int, ...] = ()
    """Counted from the first token, 0."""
    from_end: tuple[int, ...] = ()
    """Counted from the end: 1 is the last."""
    every: tuple[int, ...] = ()
    """Of each of these the multiples."""

    @classmethod
    def parse(cls, text: str) -> Positions:
        """The positions that a text names; UsageError for any other text."""
        numbers, from_end, every = set[int](), set[int](), set[int]()
        for part in parts(text):
            name, colon, count = part.partition(":")
            if name == "last" and (not colon or _is_count(count)):
                from_end.update(range(1, int(count or 1) + 1))
            elif name == "every" and _is_count(count):
                every.add(int(count))
            elif part[0] == "-" and _is_count(part[1:]):
                from_end.add(int(part[1:]))
            elif part[0].isdecimal():
                numbers.update(number_set(part, "positions"))
            else:
                raise _no_positions(text)
        if not (numbers or from_end or every):
            raise _no_positions(text)
        steps = [n for n in every if not any(n % m == 0 for m in every if m < n)]
        rest = {n for n in numbers if not any(n % m == 0 for m in steps)}
        return cls(tuple(sorted(rest)), tuple(sorted(from_end)), tuple(sorted(steps)))

    def __str__(self) -> str:
        """The same positions always in the same words."""
        lasts = next((k for k, n in enumerate(self.from_end, 1) if n != k), len(self.from_end) + 1) - 1
        beside = {n for number in self.numbers for n in (number - 1, number + 1) if n >= 0}
        multiples = {n for n in beside if any(n % step == 0 for step in self.every)}  # they join ranges
        words = [written({*self.numbers, *multiples})] if self.numbers else []
        words += [f"last:{lasts}" if lasts > 1 else "last"] if lasts else []
        words += [f"-{n}" for n in self.from_end[lasts:]]
        return ",".join(words + [f"every:{n}" for n in self.every])

    def rows(self, length: int) -> tuple[int, ...]:
        """The positions that a document of `length` tokens has, in order; those beyond it are left out."""
        return _rows(self, length)

    def furthest(self) -> int:
        """The tokens that a document must have to have every one of them (`every` asks for none)."""
        return max((*(n + 1 for n in self.numbers), *self.from_end), default=1)

    def all_of(self, window: int) -> bool:
        """Whether these are all positions of every document of up to `window` tokens."""
        if 1 in self.every or {*range(1, window + 1)} <= {*self.from_end}:
            return True
        return len(Positions(self.numbers, (), self.every).rows(window)) == window


@lru_cache(maxsize=256)
def _rows(positions: Positions, length: int) -> tuple[int, ...]:
    found = {n for n in positions.numbers if n < length}
    found.update(length - n for n in positions.from_end if n <= length)
    for step in positions.every:
        found.update(range(0, length, step))
    return tuple(sorted(found))


def _is_count(text: str) -> bool:
    return text.isdecimal() and 0 < int(text) < MOST


def _no_positions(text: str) -> UsageError:
    expected = "query positions as numbers, ranges, last, last:8 or every:16, such as 0-31,last"
    return UsageError(expected, got=repr(text), where="positions")
