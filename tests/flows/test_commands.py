"""How an answer is laid out for a person: nothing said twice, nothing broken up, nothing lost."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from rich.console import Console

from flows.answer_layout import tell_answer
from flows.console import Output

NAMES = ["capture", "layer", "gain", "gain_lo", "gain_hi", "published"]
ROWS = [["one", 0, 0.5, 0.25, 0.75, None], ["one", 1, 0.125, None, None, None]]


def told(names: list[str], rows: list[list[Any]], width: int | None) -> list[str]:
    out, text = Output(), io.StringIO()
    out.people = Console(file=text, soft_wrap=True, highlight=False, width=4000)
    tell_answer(out, names, rows, width)
    return text.getvalue().splitlines()


def test_a_table_says_once_what_all_rows_share_and_leaves_out_what_is_empty() -> None:
    assert told(NAMES, ROWS, 60) == [
        "in all rows: capture one",
        "layer                gain",
        "    0  0.5 (0.25 to 0.75)",
        "    1               0.125",
        "empty: published",
    ]


def test_bounds_without_their_value_stay_columns() -> None:
    assert told(["x_lo", "x_hi"], [[1, 2], [3, 4]], 60) == ["x_lo  x_hi", "   1     2", "   3     4"]


def test_a_single_row_and_rows_all_alike_keep_their_columns() -> None:
    assert told(["a", "b"], [[1, 2]], 60) == ["a  b", "1  2"]
    assert told(["a"], [[1], [1]], 60) == ["a", "1", "1"]
    assert told(["a", "b"], [[None, None]], 60) == ["a  b", "–  –"]


def test_names_of_columns_break_at_underscores_before_rows_do() -> None:
    assert told(["layer", "mean_of_norm", "share_of_rows"], [[0, 1, 3], [1, 2, 4]], 24) == [
        "       mean_  share_",
        "         of_     of_",
        "layer   norm    rows",
        "    0      1       3",
        "    1      2       4",
    ]


WIDE = [f"quantity_{n}" for n in range(12)]


@pytest.mark.parametrize("width", [40, 80, 120])
def test_what_is_wider_than_the_terminal_is_told_as_records(width: int) -> None:
    """Every value beside its name, whole, and no line wider than the terminal."""
    rows = [[f"value {row} of {name}" for name in WIDE] for row in range(3)]
    lines = told(WIDE, rows, width)
    assert max(map(len, lines)) <= width
    pairs = [tuple(re.split(r"  +", pair, maxsplit=1)) for line in lines for pair in re.split(r"   {2,}", line)]
    found = [pair for pair in pairs if len(pair) == 2]
    assert sorted(found) == sorted((name, f"value {row} of {name}") for row in range(3) for name in WIDE)
    assert [line for line in lines if line.startswith("row ")] == ["row 1", "row 2", "row 3"]


def test_a_pipe_gets_a_line_for_each_row_however_wide() -> None:
    rows = [[f"value {row} of {name}" for name in WIDE] for row in range(3)]
    header, *lines = told(WIDE, rows, None)
    assert header.split() == WIDE and len(lines) == 3
    assert all(re.split("  +", line) == row for line, row in zip(lines, rows, strict=True))


def test_captures_are_told_one_after_the_other_where_their_table_is_too_wide() -> None:
    names = ["capture", "model", "layer", "loss"]
    rows = [[c * 20, c.upper() * 20, layer, layer / 4] for c in ("a", "b") for layer in (0, 1)]
    assert len(told(names, rows, 80)) == 5
    lines = told(names, rows, 40)
    assert max(map(len, lines)) <= 40
    assert lines[:3] == ["in all rows:", f"  capture {'a' * 20},", f"  model {'A' * 20}"]
    assert [line.split() for line in lines if line.strip().startswith(("0", "1"))] == [
        ["0", "0"],
        ["1", "0.25"],
        ["0", "0"],
        ["1", "0.25"],
    ]
    assert "row 1" not in lines
