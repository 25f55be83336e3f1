"""The command `theodolite`."""

from __future__ import annotations

import gc
import os
import signal
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from flows.commands import inspect as asking
from flows.commands import query as questions
from flows.commands import run as working
from flows.commands import train as training
from flows.console import Output, usage_error

app = typer.Typer(
    name="theodolite",
    help="Capture a language model's attention once, then measure it in SQL.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_TAKES_A_COMMENT = {"ignore_unknown_options": True}
"""SQL may begin with `-- a comment`, which would be parsed as an option."""
for _name, _command in (
    ("run", working.run),
    ("plan", asking.plan),
    ("capture", working.capture),
    ("stage", working.stage),
    ("train", training.train),
    ("status", asking.status),
    ("verify", asking.verify),
    ("sql", questions.sql),
    ("query", questions.query_),
    ("models", asking.models),
):
    app.command(_name, context_settings=_TAKES_A_COMMENT if _name == "sql" else None)(_command)


def _version(asked: bool) -> None:
    if asked:
        try:
            typer.echo(version("theodolite"))
        except PackageNotFoundError:
            typer.echo("not installed as a package")
        raise typer.Exit


@app.callback()
def theodolite(
    shown: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="The version, and nothing else.")
    ] = False,
) -> None:
    """Capture a language model's attention once, then measure it in SQL."""


def main() -> None:
    """The command line: parse, call, and leave with the command's exit code. SIGTERM ends it as Ctrl-C does."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.default_int_handler)
    try:
        code = app(standalone_mode=False)
    except KeyboardInterrupt:  # outside a command's body: before its options are parsed, or after its answer
        code = Output("--json" in sys.argv).interrupted()
    except Exception as error:  # the commands report their own errors: what arrives here is a line that did not parse
        if not hasattr(error, "exit_code"):
            raise
        code = usage_error(error, sys.argv[1:])
    code = code if isinstance(code, int) else 0
    for each in (signal.SIGINT, signal.SIGTERM):  # the answer is given: what is left is to close down
        signal.signal(each, lambda _signal, _frame: os._exit(code))
    gc.freeze()  # else the interpreter, on its way out, looks through all of torch and Prefect for two seconds
    sys.exit(code)
