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

_OWN = "[by variant]"


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
    variant: Annotated[str, typer.Option("--variant", help="sample, or a reference model: base, ega.")] = "sample",
    steps: Annotated[int | None, typer.Option("--steps", help=f"Steps of training. {_OWN}")] = None,
    batch: Annotated[int | None, typer.Option("--batch", help=f"Windows in a step. {_OWN}")] = None,
    context: Annotated[int | None, typer.Option("--context", help="Characters in a window. [256]")] = None,
    layers: Annotated[int | None, typer.Option("--layers", help="[6]")] = None,
    heads: Annotated[int | None, typer.Option("--heads", help="Heads in a layer. [8]")] = None,
    width: Annotated[int | None, typer.Option("--width", help=f"Width of the model. {_OWN}")] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help=f"Of first weights, windows drawn and dropout. {_OWN}")
    ] = None,
    optimiser: Annotated[
        str | None, typer.Option("--optimiser", help="Of base and ega: adamw, or muon for hidden matrices. [adamw]")
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option("--learning-rate", help="Of base and ega: AdamW's peak. [3e-4]")
    ] = None,
    warm_up_steps: Annotated[
        int | None, typer.Option("--warm-up-steps", help="Of base and ega: steps in which the rate rises. [300]")
    ] = None,
    dropout: Annotated[float | None, typer.Option("--dropout", help="Of base and ega: share dropped. [0.1]")] = None,
    precision: Annotated[
        str | None, typer.Option("--precision", help="Of base and ega: float32, or bfloat16 in training. [float32]")
    ] = None,
    gate_statistics: Annotated[
        str | None, typer.Option("--gate-statistics", help="Of ega: causal, or published (sees the future). [causal]")
    ] = None,
    checkpoint_every: Annotated[int, typer.Option("--checkpoint-every", help="Steps between checkpoints.")] = 100,
    as_json: o.Json = False,
    verbose: o.Verbose = False,
) -> None:
    """Train a character model on a text, to capture with --model FOLDER. Interrupted, the same command goes on."""
    text = list(corpus) if corpus else None
    chosen: dict[str, Any] = {
        "steps": steps,
        "batch": batch,
        "context": context,
        "layers": layers,
        "heads": heads,
        "width": width,
        "seed": seed,
        "optimiser": optimiser,
        "learning_rate": learning_rate,
        "warm_up_steps": warm_up_steps,
        "dropout": dropout,
        "precision": precision,
        "gate_statistics": gate_statistics,
    }

    def flow() -> Any:
        from flows.train_run import train_run
        from tasks.training.progress import listening
        from tasks.training.settings import TrainSettings

        with work("train", TrainSettings.of(variant, **chosen).steps, "steps"), listening(_steps()):
            return train_run(out, text, field=field, variant=variant, checkpoint_every=checkpoint_every, **chosen)

    def check() -> Sequence[str]:
        from tasks.training.settings import TrainSettings

        TrainSettings.of(variant, **chosen).check()
        return WITH_MODEL

    result, told = in_prefect(flow, check), output()
    done = "was trained before" if result.already_done else f"trained in {result.seconds:,.0f} s"
    told.say(f"{result.parameters:,} parameters, {done}: {result.held_out_nats:.3f} nats per held-out character")
    told.say(f"theodolite run --model {shlex.quote(out)}{_corpus_again(text)}")
    told.add(run=out, train=asdict(result))


def _steps() -> Callable[[TrainProgress], None]:
    """Training's own progress, passed on as steps; the first tells how many an earlier try did."""
    done: int | None = None

    def tell(now: TrainProgress) -> None:
        nonlocal done
        if done is None:
            done = now.step - 1
            emit(Progress("train", done, "steps", restored=True))
        emit(Progress("train", now.step - done, "steps"))
        done = now.step

    return tell


def _corpus_again(text: list[str] | None) -> str:
    return "".join(f" --corpus {shlex.quote(path)}" for path in text or ())
