"""An answer as a person reads it: what all rows share said once, what is empty left out, and nothing broken up."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len

from flows.console import Output, cell

_GAP, _WIDE_GAP = "  ", "    "
_SECTION = "capture"


@dataclass(frozen=True)
class Column:
    """One column of an answer, its cells as text; a value with its interval is one of them."""

    name: str
    cells: tuple[str, ...]
    numeric: bool
    empty: bool

    def width(self, heading: Sequence[str]) -> int:
        return max(map(cell_len, (*heading, *self.cells)))

    @property
    def constant(self) -> bool:
        return len(set(self.cells)) == 1


def tell_answer(out: Output, names: Sequence[str], rows: Sequence[Sequence[Any]], width: int | None) -> None:
    """Say an answer. `width` is the terminal's; None, in a file or a pipe, leaves every row one line.

    What is wider than the terminal is printed capture by capture, since much is the same in a capture's rows; what is
    still wider, with the names of columns on several lines; and what then is wider, as records.
    """
    shared, varying, empty = parted(columns_of(names, rows), len(rows))
    for line in _joined("in all rows: ", [f"{c.name} {c.cells[0]}" for c in shared], width) if shared else ():
        out.say(line)
    _tell_varying(out, names, rows, varying, width)
    for line in _joined("empty: ", [c.name for c in empty], width) if empty else ():
        out.say(line)


def _tell_varying(
    out: Output, names: Sequence[str], rows: Sequence[Sequence[Any]], varying: Sequence[Column], width: int | None
) -> None:
    captures = next((c for c in varying if c.name == _SECTION), None)
    for headings in ([[c.name] for c in varying], [folded_name(c) for c in varying]):
        if width is None or _table_width(varying, headings) <= width:
            for number, line in enumerate(table_lines(varying, headings)):
                out.say(line, style="bold" if number < max(map(len, headings)) else None)
            return
        if captures is not None and 1 < len(set(captures.cells)) < len(rows):
            _tell_captures(out, names, rows, [c.name for c in varying], width)
            return
    assert width is not None, "without a width all fits"
    for number, lines in enumerate(record_lines(varying, width), start=1):
        out.say(f"row {number}", style="bold")
        for line in lines:
            out.say(line)


def _tell_captures(
    out: Output, names: Sequence[str], rows: Sequence[Sequence[Any]], varying: Collection[str], width: int | None
) -> None:
    """Each capture by itself, of the columns that vary between all rows."""
    told = [name for name in names if name in varying or re.sub("_(lo|hi)$", "", name) in varying]
    at = [names.index(name) for name in told]
    by_capture: dict[Any, list[list[Any]]] = {}
    for row in rows:
        by_capture.setdefault(row[names.index(_SECTION)], []).append([row[index] for index in at])
    for number, section in enumerate(by_capture.values()):
        if number:
            out.say()
        tell_answer(out, told, section, width)


def columns_of(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[Column]:
    """The columns of an answer; `x`, `x_lo` and `x_hi` become one, "0.31 (0.23 to 0.40)"."""
    at = {name: index for index, name in enumerate(names)}
    bounded = {name for name in names if f"{name}_lo" in at and f"{name}_hi" in at}
    bounds = {f"{name}_{side}" for name in bounded for side in ("lo", "hi")}
    found = []
    for name in names:
        if name in bounds:
            continue
        values = [row[at[name]] for row in rows]
        cells = [cell(value) for value in values]
        if name in bounded:
            cells = [_with_interval(row[at[name]], row[at[f"{name}_lo"]], row[at[f"{name}_hi"]]) for row in rows]
        numeric = any(isinstance(value, int | float) for value in values)
        found.append(Column(name, tuple(cells), numeric, all(value is None for value in values)))
    return found


def parted(columns: Sequence[Column], n_rows: int) -> tuple[list[Column], list[Column], list[Column]]:
    """The columns that have one value in all rows, those that vary, and those without a value.

    Of a single row every value is the only one, and where no column varies there would be no table: then all stay.
    """
    filled = [c for c in columns if not c.empty]
    varying = [c for c in filled if not c.constant] if n_rows > 1 else filled
    if not varying:
        return [], filled or list(columns), [c for c in columns if c.empty] if filled else []
    return [c for c in filled if c not in varying], varying, [c for c in columns if c.empty]


def table_lines(columns: Sequence[Column], headings: Sequence[Sequence[str]]) -> list[str]:
    """The lines of the header, which end together, and one for each row; numbers to the right."""
    height = max(map(len, headings))
    raised = [[""] * (height - len(heading)) + list(heading) for heading in headings]
    widths = [c.width(heading) for c, heading in zip(columns, headings, strict=True)]
    texts = zip(*((*top, *c.cells) for top, c in zip(raised, columns, strict=True)), strict=True)
    return [
        _GAP.join(
            _padded(text, size, right=c.numeric) for text, size, c in zip(line, widths, columns, strict=True)
        ).rstrip()
        for line in texts
    ]


def folded_name(column: Column) -> list[str]:
    """The column's name on several lines, broken at its underscores only, no wider than its cells where it can be."""
    pieces = re.findall("[^_]*_|[^_]+", column.name) or [column.name]
    most = max(map(cell_len, (*pieces, *column.cells)))
    lines = [""]
    for piece in pieces:
        if lines[-1] and cell_len(lines[-1] + piece) > most:
            lines.append("")
        lines[-1] += piece
    return lines


def record_lines(columns: Sequence[Column], width: int) -> Iterator[list[str]]:
    """For each row its lines `name  value`, as many of them side by side as the width holds, read line by line."""
    names = max(cell_len(c.name) for c in columns)
    values = max(cell_len(text) for c in columns for text in c.cells)
    pair = names + len(_GAP) + values
    beside = max(1, (width + len(_WIDE_GAP)) // (pair + len(_WIDE_GAP)))
    for row in zip(*(c.cells for c in columns), strict=True):
        pairs = [_padded(c.name, names) + _GAP + _padded(text, values) for c, text in zip(columns, row, strict=True)]
        lines = (pairs[at : at + beside] for at in range(0, len(pairs), beside))
        yield [_WIDE_GAP.join(line).rstrip() for line in lines]


def listing(pairs: Sequence[tuple[str, str]], width: int | None) -> list[str]:
    """Names, and beside each what it is, which goes on below itself where the width ends."""
    names = max(cell_len(name) for name, _ in pairs) + len(_GAP)
    lines = []
    for name, text in pairs:
        folded = [text] if width is None else textwrap.wrap(text, max(20, width - names), break_on_hyphens=False)
        lines += [_padded(name if not n else "", names) + line for n, line in enumerate(folded)]
    return lines


def _with_interval(value: Any, low: Any, high: Any) -> str:
    if value is None or low is None or high is None:
        return cell(value)
    return f"{cell(value)} ({cell(low)} to {cell(high)})"


def _table_width(columns: Sequence[Column], headings: Sequence[Sequence[str]]) -> int:
    widths = (c.width(heading) for c, heading in zip(columns, headings, strict=True))
    return sum(widths) + len(_GAP) * (len(columns) - 1)


def _padded(text: str, width: int, *, right: bool = False) -> str:
    """Padded to cells of the terminal: a letter of some scripts takes two."""
    space = " " * (width - cell_len(text))
    return space + text if right else text + space


def _joined(what: str, told: Sequence[str], width: int | None) -> list[str]:
    """Told one after the other, with commas, never broken within one."""
    lines = [what]
    for number, text in enumerate(told):
        piece = text if number == len(told) - 1 else f"{text}, "
        if width is not None and cell_len(lines[-1]) + cell_len(piece.rstrip()) > width and lines[-1].strip():
            lines.append(_GAP)
        lines[-1] += piece
    return [line.rstrip() for line in lines]
