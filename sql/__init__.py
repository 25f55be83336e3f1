"""The warehouse's SQL, as files a person reads; here they are found and their headers understood.

Every file begins with comment lines: `-- grain: one row per (…)`, then what it says, then, for queries and checks, a
line per parameter, `-- $name type = default: meaning` (the default is JSON). Views carry a comment on each column.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

_GRAIN = re.compile(r"-- grain: (one row per \((?P<keys>[\w, ]+)\).*)")
_PARAMETER = re.compile(r"-- \$(\w+) (\w+) = ([^:]+): (.+)")
_LISTED = re.compile(r"(?:^|: )\w+(?:, \w+)* or \w+$")
_COLUMN = re.compile(r"\s+(?:.* as )?(\w+),?\s+-- (.+)")


@dataclass(frozen=True)
class Parameter:
    """A `$name` of a query or check: its SQL type, its default (None for null) and what it does."""

    name: str
    type: str
    default: Any
    meaning: str

    @property
    def takes_null(self) -> bool:
        """Whether null means something: where it is the default, or the meaning says what it takes."""
        return self.default is None or "null takes" in self.meaning

    @property
    def words(self) -> tuple[str, ...]:
        """The values that a text may have, where its meaning names them all: "exact or published; null takes both"."""
        listed = _LISTED.search(self.meaning.partition(";")[0]) if self.type == "varchar" else None
        return tuple(re.split(r", | or ", listed[0].lstrip(": "))) if listed else ()


@dataclass(frozen=True)
class SqlFile:
    """One view, query or check."""

    name: str
    text: str
    grain: str
    """The grain line without its dashes: "one row per (…)"."""
    keys: tuple[str, ...]
    """The columns that the grain names."""
    summary: str
    """The comment lines between grain and parameters, joined."""
    parameters: tuple[Parameter, ...]

    @property
    def body(self) -> str:
        """The statement without its header."""
        return "\n".join(self.text.splitlines()[len(_header(self.text)) :])

    def column_meanings(self) -> dict[str, str]:
        """What the comment beside each column of a view's select list says."""
        matches = map(_COLUMN.fullmatch, self.body.splitlines())
        return {m[1]: m[2] for m in matches if m}


def macros() -> str:
    """The statements that define the macros."""
    return (files("sql") / "macros.sql").read_text("utf-8")


@cache
def names(kind: str) -> tuple[str, ...]:
    """The names of all files of a kind (views, queries, checks), sorted."""
    found = (entry.name for entry in (files("sql") / kind).iterdir())
    return tuple(sorted(name.removesuffix(".sql") for name in found if name.endswith(".sql")))


@cache
def read(kind: str, name: str) -> SqlFile:
    """One file, its header understood. Raises FileNotFoundError if absent, ValueError if its header is malformed."""
    text = (files("sql") / kind / f"{name}.sql").read_text("utf-8")
    header = _header(text)
    grain = _GRAIN.fullmatch(header[0]) if header else None
    if grain is None:
        raise ValueError(f"expected '-- grain: one row per (…)' first, got {text[:40]!r} in sql/{kind}/{name}.sql")
    parameters = [m for line in header if (m := _PARAMETER.fullmatch(line))]
    prose = [line.removeprefix("-- ") for line in header[1:] if not line.startswith("-- $")]
    return SqlFile(
        name,
        text,
        grain[1],
        tuple(grain["keys"].split(", ")),
        " ".join(prose),
        tuple(Parameter(m[1], m[2], json.loads(m[3]), m[4]) for m in parameters),
    )


def _header(text: str) -> list[str]:
    lines = text.splitlines()
    return lines[: next((i for i, line in enumerate(lines) if not line.startswith("--")), len(lines))]
