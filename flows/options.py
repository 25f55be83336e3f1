"""The options that commands share beside a capture's: names that scripts rely on, and their help."""

from __future__ import annotations

from typing import Annotated, Any

import typer

PLACE, ENDING = "Where and how", "Output"

ConfigFile = Annotated[
    str | None, typer.Argument(metavar="[CONFIG]", help="A TOML file, or the name of a preset.", show_default=False)
]


def _place(*names: str, text: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=PLACE, show_default=False, **more)


Runs = Annotated[str | None, _place("--runs", metavar="WHERE", text="The folder of runs; runs.")]
Stages = Annotated[str | None, _place("--stages", metavar="A,B", text="The stages, in order, or all; the quick ones.")]
Set = Annotated[
    list[str] | None,
    _place("--set", metavar="STAGE.PARAMETER=VALUE", text="A stage's parameter. Repeatable."),
]
Seed = Annotated[int | None, _place("--seed", min=0, text="The seed of everything that is drawn; 0.")]
Workers = Annotated[
    int | None, _place("--workers", min=1, text="Shards of a stage worked on at once, at most the cores; the cores.")
]
Documents = Annotated[
    int, _place("--documents", min=0, text="Documents run again through the plain model; 2, and 0 for none.")
]
Capture = Annotated[
    str | None, _place("--capture", metavar="ID", text="The capture's id, or its beginning; the latest.")
]
OutputFile = Annotated[
    str | None,
    typer.Option(
        "--output",
        metavar="FILE",
        help="Write all rows to FILE.csv, .json or .parquet.",
        show_default=False,
        rich_help_panel=ENDING,
    ),
]
Json = Annotated[
    bool,
    typer.Option("--json", help="One JSON object last on standard output; all else beside it.", rich_help_panel=ENDING),
]
Verbose = Annotated[
    bool, typer.Option("--verbose", help="Prefect's log lines, and tracebacks of errors.", rich_help_panel=ENDING)
]
