"""How documents enter a model: as token ids (run.py), or as the pixels of images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from storage.errors import CorpusError
from tasks.models.layer_record import Span
from tasks.models.loading import LoadedModel
from tasks.models.patches import CHANNELS, PatchGrid


@dataclass(frozen=True)
class InputKind:
    """What the capture of a batch asks of its documents' inputs."""

    check: Callable[[LoadedModel, Sequence[np.ndarray], Sequence[int]], None]
    """Raises CorpusError or ModelError, naming the document, for inputs that the model cannot take."""
    length: Callable[[LoadedModel, np.ndarray], int]
    """Tokens that the model makes of one document."""
    tensors: Callable[[LoadedModel, Sequence[np.ndarray], Sequence[Span], int], dict[str, Any]]
    """What the model is called with, on its device."""
    blank: Callable[[LoadedModel], np.ndarray]
    """A document of nothing."""


def pixel_grid(loaded: LoadedModel) -> PatchGrid:
    """The patches of a model that reads images."""
    config: Any = loaded.model.config
    return PatchGrid.of(config.to_dict(), loaded.name)


def _check(loaded: LoadedModel, inputs: Sequence[np.ndarray], documents: Sequence[int]) -> None:
    grid = pixel_grid(loaded)
    for document, pixels in zip(documents, inputs, strict=True):
        where = f"document {document}"
        size = inputs[0].shape[1:] if grid.interpolates else grid.image
        if pixels.shape != (CHANNELS, *size):
            expected = f"pixels of shape {(CHANNELS, *size)}"
            raise CorpusError(expected, got=str(pixels.shape), where=where, remedy="Prepare all images alike.")
        if not np.isfinite(pixels).all():
            raise CorpusError("finite pixels", got="NaN or infinity", where=where)


def _length(loaded: LoadedModel, pixels: np.ndarray) -> int:
    return pixel_grid(loaded).length(pixels.shape[1:])


def _tensors(loaded: LoadedModel, inputs: Sequence[np.ndarray], _spans: Sequence[Span], _width: int) -> dict[str, Any]:
    """Images of one batch have one size: nothing is padded, and no mask is needed."""
    pixels = torch.from_numpy(np.stack(inputs))
    return {"pixel_values": pixels.to(loaded.device, next(loaded.model.parameters()).dtype)}


def _blank(loaded: LoadedModel) -> np.ndarray:
    return np.zeros((CHANNELS, *pixel_grid(loaded).image), np.float32)


PIXELS = InputKind(_check, _length, _tensors, _blank)
