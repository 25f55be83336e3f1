"""Numbers, ranges and query positions as users write them: the same choice in the same words, nonsense refused."""

from __future__ import annotations

import pytest

from storage.errors import UsageError
from storage.numbers import Positions, number_set, spans, written


def test_numbers_and_ranges() -> None:
    assert number_set("3, 1-2,2", "heads") == (1, 2, 3)
    assert written([7, 2, 3, 1, 3]) == "1-3,7" and spans([1, 2, 3, 7]) == "1–3, 7"


@pytest.mark.parametrize(
    ("text", "words", "of_twenty", "of_three"),
    [
        ("2,0-1,19", "0-2,19", (0, 1, 2, 19), (0, 1, 2)),
        ("last", "last", (19,), (2,)),
        ("-1", "last", (19,), (2,)),
        ("-2,-1,-5", "last:2,-5", (15, 18, 19), (1, 2)),
        ("-4,5", "5,-4", (5, 16), ()),
        ("last:25", "last:25", tuple(range(20)), (0, 1, 2)),
        ("every:8,every:16,0,3", "3,every:8", (0, 3, 8, 16), (0,)),
        ("0-4,every:2", "0-4,every:2", (0, 1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 18), (0, 1, 2)),
        (" last , 1 ,every:9", "0-1,last,every:9", (0, 1, 9, 18, 19), (0, 1, 2)),
    ],
)
def test_positions_of_documents_of_any_length(
    text: str, words: str, of_twenty: tuple[int, ...], of_three: tuple[int, ...]
) -> None:
    positions = Positions.parse(text)
    assert (str(positions), positions.rows(20), positions.rows(3)) == (words, of_twenty, of_three)
    assert Positions.parse(words) == positions


def test_positions_that_leave_nothing_out() -> None:
    for text, at_most in (("0-9", 10), ("last:7", 7), ("every:1", 10**6), ("0-9,every:3", 10)):
        assert Positions.parse(text).all_of(at_most)
        assert not Positions.parse(text).all_of(at_most + 1) or text == "every:1"
    assert [Positions.parse(text).furthest() for text in ("3,9", "last:4", "every:64", "2,-5")] == [10, 4, 1, 5]


@pytest.mark.parametrize(
    "text", ["", " ,", "first", "last:0", "last:x", "-0", "--1", "every", "every:0", "last:9999999"]
)
def test_words_that_name_no_position_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"query positions as numbers, ranges, last, last:8 or every:16.*in positions"):
        Positions.parse(text)


@pytest.mark.parametrize("text", ["3-1", "1-", "1:2", "4-9999999999"])
def test_ranges_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(
        UsageError, match=f"positions as numbers and ranges, such as 0-5,10, got '{text}', in positions"
    ):
        Positions.parse(text)
