"""Training a character model: the sample model with the defaults, or a model of one's own text."""

from __future__ import annotations

from prefect import flow

from tasks.training.loop import TrainResult
from tasks.training.settings import TrainSettings
from tasks.training.task import train_model


@flow(name="train", persist_result=False, validate_parameters=True)
def train_run(
    out: str,
    text: list[str] | None = None,
    *,
    field: str | None = None,
    variant: str = "sample",
    steps: int | None = None,
    batch: int | None = None,
    context: int | None = None,
    seed: int | None = None,
    layers: int | None = None,
    heads: int | None = None,
    width: int | None = None,
    optimiser: str | None = None,
    learning_rate: float | None = None,
    warm_up_steps: int | None = None,
    dropout: float | None = None,
    precision: str | None = None,
    gate_statistics: str | None = None,
    checkpoint_every: int = 100,
) -> TrainResult:
    """Train a character model into the folder `out`, or go on with the run that lies there.

    Args:
        out: an empty or absent folder, or one in which this same run was begun.
        text: files, folders, patterns, or `python-topics`; by default the text that every Python carries.
        field: the field that holds the text, for JSON Lines and Parquet.
        variant: sample | base | ega; what is left None below has the variant's own default.
        steps, batch, context: how many steps, windows in a step, characters in a window.
        seed: of the first weights, of every step's windows and of its dropout.
        layers, heads, width: the model's size.
        optimiser: of base and ega: adamw | muon (of the hidden matrices).
        learning_rate, warm_up_steps, dropout: of base and ega: AdamW's peak, steps in which it rises, share dropped.
        precision: of base and ega: what matrices are multiplied in, float32 | bfloat16.
        gate_statistics: of ega: causal | published.
        checkpoint_every: steps between two checkpoints.
    """
    settings = TrainSettings.of(
        variant,
        steps=steps,
        batch=batch,
        context=context,
        seed=seed,
        layers=layers,
        heads=heads,
        width=width,
        optimiser=optimiser,
        learning_rate=learning_rate,
        warm_up_steps=warm_up_steps,
        dropout=dropout,
        precision=precision,
        gate_statistics=gate_statistics,
    ).check(checkpoint_every)
    return train_model(text or ["python-topics"], out, field, settings, checkpoint_every)
