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
    steps: int = 1450,
    batch: int = 8,
    context: int = 256,
    seed: int = 1337,
    layers: int = 6,
    heads: int = 8,
    width: int = 128,
    checkpoint_every: int = 100,
) -> TrainResult:
    """Train a character model into the folder `out`, or go on with the run that lies there.

    Args:
        out: an empty or absent folder, or one in which this same run was begun.
        text: files, folders, patterns, or `python-topics`; by default the text that every Python carries.
        field: the field that holds the text, for JSON Lines and Parquet.
        steps, batch, context: how many steps, windows in a step, characters in a window.
        seed: of the first weights and of every step's windows.
        layers, heads, width: the model's size.
        checkpoint_every: steps between two checkpoints.
    """
    settings = TrainSettings(steps, batch, context, seed, layers, heads, width).check()
    return train_model(text or ["python-topics"], out, field, settings, checkpoint_every)
