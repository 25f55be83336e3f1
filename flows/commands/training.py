"""The command that trains: a small character model, such as the sample model."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows import options as o
from flows.console import answering, output
from flows.progress import work
from flows.session import WITH_MODEL, in_prefect
from tasks.progress import Progress, emit

if TYPE_CHECKING:
    from tasks.training.progress import TrainProgress


@answering
def train(
    out: Annotated[str, typer.Argument(metavar="FOLDER", help="A new folder for the model, or one begun before.")],
    corpus: Annotated[
        list[str] | None,
        typer.Option("--corpus", help="Files, folders or globs. Repeatable; python-topics.", show_default=False),
    ] = None,
    field: Annotated[
        str | None, typer.Option("--field", help="The field that holds the text.", show_default=False)
    ] = None,
    steps: Annotated[int, typer.Option("--steps", help="Steps of training.")] = 1450,
    batch: Annotated[int, typer.Option("--batch", help="Windows in a step.")] = 8,
    context: Annotated[int, typer.Option("--context", help="Characters in a window.")] = 256,
    layers: Annotated[int, typer.Option("--layers")] = 6,
    heads: Annotated[int, typer.Option("--heads", help="Heads in a layer.")] = 8,
    width: Annotated[int, typer.Option("--width", help="Width of the model.")] = 128,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the first weights and of the windows drawn.")] = 1337,
    checkpoint_every: Annotated[int, typer.Option("--checkpoint-every", help="Steps between checkpoints.")] = 100,
    as_json: o.Json = False,
    verbose: o.Verbose = False,
) -> None:
    """Train a character model on a text, to capture with --model FOLDER. Interrupted, the same command goes on."""
    text = list(corpus) if corpus else None
    sizes = {"steps": steps, "batch": batch, "context": context, "layers": layers, "heads": heads, "width": width}

    def flow() -> Any:
        from flows.train_run import train_run
        from tasks.training.progress import listening

        with work("train", steps, "steps"), listening(_steps()):
            return train_run(out, text, field=field, seed=seed, checkpoint_every=checkpoint_every, **sizes)

    def check() -> Sequence[str]:
        from tasks.training.settings import TrainSettings

        TrainSettings(**sizes).check()
        return WITH_MODEL

    result, told = in_prefect(flow, check), output()
    done = "was trained before" if result.already_done else f"trained in {result.seconds:,.0f} s"
    told.say(f"{result.parameters:,} parameters, {done}: {result.held_out_nats:.3f} nats per held-out character")
    told.say(f"theodolite run --model {shlex.quote(out)}{_corpus_again(text)}")
    told.add(run=out, train=asdict(result))


def _steps() -> Callable[[TrainProgress], None]:
    """Training's own progress, passed on as steps."""
    done = 0

    def tell(now: TrainProgress) -> None:
        nonlocal done
        emit(Progress("train", now.step - done if done else 1, "steps"))
        done = now.step

    return tell


def _corpus_again(text: list[str] | None) -> str:
    return "".join(f" --corpus {shlex.quote(path)}" for path in text or ())
