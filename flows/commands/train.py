"""The command that trains: a small character model, such as the sample model."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import Annotated, Any

import typer

from flows import options as o
from flows.console import answering, output
from flows.session import WITH_MODEL, in_prefect
from flows.train_progress import TrainingTold

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
        int | None,
        typer.Option(
            "--warm-up-steps", help="Of base and ega: steps in which the rate rises. [300, or a tenth of --steps]"
        ),
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

        with TrainingTold(settings.steps, checkpoint_every).shown():
            return train_run(out, text, field=field, variant=variant, checkpoint_every=checkpoint_every, **chosen)

    from tasks.training.settings import TrainSettings

    settings = TrainSettings.of(variant, **chosen).check(checkpoint_every)  # refused before Prefect starts
    result, told = in_prefect(flow, lambda: WITH_MODEL), output()
    done = "was trained before" if result.already_done else _seconds(result)
    told.say(f"{result.parameters:,} parameters, {done}: {result.held_out_nats:.3f} nats per held-out character")
    told.say(f"theodolite run --model {shlex.quote(out)}{_corpus_again(text)}")
    told.add(run=out, train=asdict(result))


def _seconds(result: Any) -> str:
    """Training and measuring apart, over all tries, and where this one went on."""
    measuring = result.measuring_seconds
    again = f" (this time from step {result.resumed_at:,})" if result.resumed_at else ""
    return f"trained in {result.seconds - measuring:,.0f} s{again} and measured in {measuring:,.0f} s"


def _corpus_again(text: list[str] | None) -> str:
    return "".join(f" --corpus {shlex.quote(path)}" for path in text or ())
