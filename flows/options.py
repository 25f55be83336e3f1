"""The options that commands share, said once: names that scripts rely on, and what help tells of them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

CAPTURED, PLACE, ENDING = "The capture", "Where and how", "Output"

ConfigFile = Annotated[
    str | None, typer.Argument(metavar="[CONFIG]", help="A TOML file, or the name of a preset.", show_default=False)
]


def _capture(*names: str, text: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=CAPTURED, show_default=False, **more)


Model = Annotated[str | None, _capture("--model", text="sample, smollm2-135m, a folder, a .gguf file, or a hub id.")]
Corpus = Annotated[
    list[str] | None,
    _capture(
        "--corpus",
        text="Files, folders, globs, s3:// or hf:NAME, of text or images; python-topics is Python's text. Repeatable.",
    ),
]
Field = Annotated[str | None, _capture("--field", text="The field of a JSONL or Parquet corpus that holds the text.")]
Window = Annotated[
    int | None, _capture("--window", text="Tokens per document, its BOS included; the model's positions, to 512.")
]
Stride = Annotated[int | None, _capture("--stride", text="Tokens from one window's start to the next; a window.")]
MaxDocuments = Annotated[int | None, _capture("--max-documents", text="At most so many documents; 0 for all.")]
Deduplicate = Annotated[
    bool | None, _capture("--deduplicate/--no-deduplicate", text="Leave out documents whose tokens came before; no.")
]
Bos = Annotated[str | None, _capture("--bos", text="auto, always or never.")]
DType = Annotated[str | None, _capture("--dtype", text="Computed in float32, float16 or bfloat16.")]
StoreDType = Annotated[
    str | None,
    _capture("--store-dtype", text="Stored in float32, float16 or bfloat16; or by kind: attention=float16,…"),
]
Attention = Annotated[
    str | None,
    _capture(
        "--attention", text="stored, rebuilt (as query and key), none, or auto: the smaller of the first two; auto."
    ),
]
Layers = Annotated[str | None, _capture("--layers", text="The layers that are kept, such as 0-5,10; all.")]
Heads = Annotated[
    str | None,
    _capture("--heads", text="The heads whose attention is kept, such as 0-3,7, with what they look at; all."),
]
Positions = Annotated[
    str | None,
    _capture("--positions", text="The query positions whose attention is kept: 0-31, -1, last:8, every:16; all."),
]
Keep = Annotated[
    str | None, _capture("--keep", text="Which of value,output_input,residual are kept besides attention; all.")
]
Padding = Annotated[str | None, _capture("--padding", text="right or left; changes no number.")]
Device = Annotated[str | None, _capture("--device", text="auto, cpu, cuda or mps.")]


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
