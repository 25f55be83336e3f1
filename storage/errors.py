"""The error family: every leaf also inherits the builtin that a caller would expect.

A message states what was expected, what came, where, and what to do about it.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

AGAIN = "run the same command again"
"""The remedy of whatever stopped a run: what was published stays, and the same command does the rest."""

RESUME = f"What is done is kept; {AGAIN} to do the rest."
"""The remedy of a run in which some shards are missing."""

INTERRUPTED = "interrupted; the same command resumes"
"""What a command prints that Ctrl-C or SIGTERM ended."""

INCOMPLETE = 3
"""The exit code where some of the work is left for the same command to do."""

VERIFY = "Run `theodolite verify`, then the same command again."
"""The remedy of a file that is damaged."""


_NEAR = 0.6
"""Below this share of common letters a suggestion misleads more often than it helps; then all names are listed."""


class TheodoliteError(Exception):
    """Base of every error that a user can cause or cure. `exit_code` is what the command ends with."""

    exit_code = 1

    def __init__(self, expected: str, *, got: str = "", where: str = "", remedy: str = "") -> None:
        self.expected, self.got, self.where, self.remedy = expected, got, where, remedy
        super().__init__(expected, got, where, remedy)

    def __reduce__(self) -> tuple[Any, ...]:
        """Errors cross processes: pickle would otherwise call the class with positional arguments, and fail."""
        return _rebuild, (type(self), self.expected, self.got, self.where, self.remedy)

    def __str__(self) -> str:
        parts = [f"expected {self.expected}"]
        if self.got:
            parts.append(f"got {self.got}")
        if self.where:
            parts.append(f"in {self.where}")
        text = ", ".join(parts)
        return f"{text}. {self.remedy}" if self.remedy else text


def _rebuild(leaf: type[TheodoliteError], expected: str, got: str, where: str, remedy: str) -> TheodoliteError:
    return leaf(expected, got=got, where=where, remedy=remedy)


class UsageError(TheodoliteError, ValueError):
    """A wrong option, value or combination: nothing was started."""

    exit_code = 2


class UnknownName(UsageError, LookupError):
    """A stage, table, query, field, capture or model that does not exist; names the nearest that does."""

    @classmethod
    def among(cls, kind: str, name: str, known: Iterable[str], *, where: str = "") -> UnknownName:
        choices = sorted(known)
        near = nearest(name, choices)
        remedy = f"Did you mean '{near}'?" if near else f"Known: {', '.join(choices) or 'none'}."
        return cls(f"the name of a {kind}", got=f"'{name}'", where=where, remedy=remedy)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that one that is not known was likely meant to be; None where none is near."""
    return next(iter(get_close_matches(name, list(known), n=1, cutoff=_NEAR)), None)


class CorpusError(TheodoliteError, ValueError):
    """The text cannot be read, is empty, or yields no document."""


class ModelError(TheodoliteError, ValueError):
    """The model cannot be loaded or captured, or has no tokenizer, or its positions are too few."""


class CaptureCheckError(TheodoliteError, ArithmeticError):
    """A capture-time identity was breached; names model, layer, document and row."""


class TrainingDiverged(TheodoliteError, ArithmeticError):
    """A loss or the weights of a model in training are no longer finite. The last good checkpoint stays."""


class StoreError(TheodoliteError, OSError):
    """Something is wrong with what lies in a run folder."""


class MissingPart(StoreError, FileNotFoundError):
    """The manifest names a file that is not there."""


class DamagedPart(StoreError, ValueError):
    """A file's content is not what the manifest says."""


class ForeignStore(StoreError, ValueError):
    """Not a store of Theodolite, or of a newer format than this version reads."""


class StorageFull(StoreError):
    """The disk, or a limit on files, has no room left. What was published stays; the same command resumes."""


class StorageReadOnly(StoreError, PermissionError):
    """The folder cannot be written."""


class IncompleteRun(TheodoliteError, RuntimeError):
    """Some shards failed; the rest is kept and can be resumed."""

    exit_code = INCOMPLETE
