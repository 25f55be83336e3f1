"""What a command says and how it ends: people's text, one JSON object for programs, one exit code."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from storage.errors import INCOMPLETE, INTERRUPTED, TheodoliteError
from storage.os_errors import system_error

DONE, FAILED, USAGE = 0, 1, 2
_WHOLE = 4000


@dataclass
class Output:
    """One command's output. With `--json`, standard output carries one object and people's text goes beside it."""

    as_json: bool = False
    verbose: bool = False
    content: dict[str, Any] = field(
        default_factory=lambda: {"run": None, "capture": None, "warehouse": None, "tables": {}}
    )

    def __post_init__(self) -> None:
        self.errors = _console(stderr=True)
        self.people = self.errors if self.as_json else _console(stderr=False)

    def say(self, text: str = "", *, style: str | None = None) -> None:
        """One line for a person, printed as it is: brackets are no markup."""
        self.people.print(text, style=style, markup=False)

    def warn(self, text: str) -> None:
        """One line about the answer, on standard error and in the JSON object's `notes`."""
        self.errors.print(text, style="yellow", markup=False)
        self.content.setdefault("notes", []).append(text)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, title: str | None = None) -> None:
        """A table for a person: numbers to the right, nothing cut off when the output is not a terminal."""
        shown = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
        for index, name in enumerate(columns):
            numeric = any(isinstance(row[index], int | float) for row in rows)
            shown.add_column(name, justify="right" if numeric else "left", overflow="fold")
        for row in rows:
            shown.add_row(*(cell(value) for value in row))
        self.people.print(shown, markup=False)

    @property
    def width(self) -> int | None:
        """The terminal's; None where people's text goes into a file or a pipe, and lines are left whole."""
        return self.people.width if self.people.is_terminal else None

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Something that takes seconds and has no measure: a spinner at a terminal, else one line."""
        if self.errors.is_terminal:
            with self.errors.status(what):
                yield
        else:
            self.errors.print(what, markup=False)
            yield

    def add(self, **content: Any) -> None:
        """Fields of the JSON object."""
        self.content.update(content)

    def end(self, code: int) -> int:
        """Print the JSON object if one was asked for; returns the exit code."""
        if self.as_json:
            sys.stdout.write(json.dumps({**self.content, "exit": code}, default=str, allow_nan=False) + "\n")
            sys.stdout.flush()
        return code

    def failed(self, error: TheodoliteError) -> int:
        """Tell an error that a user can cure; returns its exit code."""
        if self.verbose:
            self.errors.print("".join(traceback.format_exception(error)), markup=False)
        self.errors.print(f"theodolite: {error}", style="red", markup=False)
        parts = ("expected", "got", "where", "remedy")
        self.add(error={"kind": type(error).__name__, "message": str(error), **{p: getattr(error, p) for p in parts}})
        return self.end(error.exit_code)

    def interrupted(self) -> int:
        self.errors.print(f"theodolite: {INTERRUPTED}", style="yellow", markup=False)
        self.add(error={"kind": "Interrupted", "message": INTERRUPTED})
        return self.end(INCOMPLETE)

    def broken(self, error: Exception) -> int:
        """Tell a fault of Theodolite itself, with its traceback."""
        self.errors.print("".join(traceback.format_exception(error)), markup=False)
        self.errors.print("theodolite: a fault of Theodolite itself; please report the lines above", style="red")
        self.add(error={"kind": type(error).__name__, "message": str(error)})
        return self.end(FAILED)


_current: Output | None = None


def output() -> Output:
    """The output of the command that runs."""
    assert _current is not None, "a command sets it before its body"
    return _current


def answering(body: Callable[..., int | None]) -> Callable[..., None]:
    """A command that ends as every command does: `as_json` and `verbose` are its options, its errors are printed once.

    The body returns its exit code; None is DONE.
    """

    @wraps(body)
    def command(*, as_json: bool, verbose: bool, **options: Any) -> None:
        global _current  # noqa: PLW0603 - one command runs in a process
        _current = out = Output(as_json, verbose)
        try:
            code = out.end(body(as_json=as_json, verbose=verbose, **options) or DONE)
        except TheodoliteError as error:
            code = out.failed(error)
        except KeyboardInterrupt:
            code = out.interrupted()
        except Exception as error:
            code = out.interrupted() if _from_interrupt(error) else _failed(out, error)
        raise typer.Exit(code)

    return command


def _failed(out: Output, error: Exception) -> int:
    """Report a limit of the machine as an error that a user can cure, and anything else as a fault of the program."""
    known = system_error(error)
    if known is None:
        return out.broken(error)
    known.__cause__ = error
    return out.failed(known)


def _from_interrupt(error: BaseException | None) -> bool:
    """Whether an error was raised while an interrupt was handled, as by an import that Ctrl-C cut short."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return False


def usage_error(error: Exception, arguments: Sequence[str]) -> int:
    """Tell a command line that could not be parsed; the parser's exceptions carry their message and exit code."""
    told = Output("--json" in arguments)
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    told.errors.print(f"theodolite: {message} See: theodolite --help", style="red", markup=False)
    told.add(error={"kind": "UsageError", "message": message})
    return told.end(USAGE)


def plain(value: Any) -> Any:
    """A value as JSON takes it: NaN and infinities become None."""
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value


def _console(*, stderr: bool) -> Console:
    """At a terminal lines fold at its width; elsewhere, in a file or a pipe, they are left whole."""
    console = Console(stderr=stderr, soft_wrap=True, highlight=False)
    return console if console.is_terminal else Console(stderr=stderr, soft_wrap=True, highlight=False, width=_WHOLE)


def cell(value: Any) -> str:
    """A value as a person reads it in a table."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, int):
        return f"{value:,}"
    text = str(value)
    return text if text.isprintable() and text.strip() == text != "" else repr(text)
