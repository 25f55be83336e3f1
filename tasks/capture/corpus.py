"""How a model reads a corpus: as text through its tokenizer, or as images through its preprocessor.

One object for all that differs between the two before the model runs and after it ran; neither loads torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from storage.errors import ModelError, UsageError
from tasks.capture.cost import ConfigShape
from tasks.capture.settings import CaptureSettings
from tasks.corpora.files import CorpusFile
from tasks.corpora.images import ImageStream
from tasks.corpora.pieces import PieceTokenizer
from tasks.corpora.preprocessing import Preprocessor
from tasks.corpora.readers import read_files
from tasks.corpora.windows import Document, WindowSettings, WindowStream, bos_of
from tasks.models.families import family_of
from tasks.models.patches import PatchGrid
from tasks.models.sources import PREPROCESSOR, ModelSource
from tasks.models.tokenizer import Encoder, light_encoder, open_encoder

_DEFAULT_WINDOW = 512


class Documents(Protocol):
    """The documents of a corpus, made as they are asked for."""

    left_out: dict[str, int]

    def __iter__(self) -> Iterator[Document]: ...


class Reading(Protocol):
    """What a model makes of a corpus."""

    @property
    def kind(self) -> str:
        """text or images."""

    def window(self, settings: CaptureSettings) -> int:
        """Tokens of a document at most. Raises UsageError for settings that this reading has no use for."""

    def proven(self) -> Reading:
        """The same, for what is to be kept: what was read with less loaded than it takes to be sure is made sure."""

    def documents(self, settings: CaptureSettings, window: int, files: Sequence[CorpusFile]) -> Documents:
        """The documents of these files."""

    def token_columns(self, token_ids: Sequence[np.ndarray]) -> dict[str, Any]:
        """Columns token_id and token of the table of tokens, documents one after the other."""


def reading_of(source: ModelSource, config: Mapping[str, Any]) -> Reading:
    """How the model of this configuration reads. Raises ModelError (a family that is not known; no preprocessor)."""
    family = family_of(config, where=source.name)
    if family.reads == "text":
        return TextReading(source, ConfigShape.of(config, str(source.config_file)))
    grid = PatchGrid.of(config, str(source.config_file))
    return ImageReading(source, grid, Preprocessor.read(source.path(PREPROCESSOR)))


@dataclass(frozen=True)
class TextReading:
    """Texts cut into windows of token ids."""

    source: ModelSource
    shape: ConfigShape
    compared: Encoder | None = None
    kind: str = "text"

    @cached_property
    def encoder(self) -> Encoder:
        """The model's tokenizer, opened once: without transformers where its files allow, unless it was compared."""
        return self.compared or light_encoder(self.source)

    def proven(self) -> TextReading:
        """The same, with a tokenizer that was compared with transformers'."""
        return replace(self, compared=open_encoder(self.source))

    def window(self, settings: CaptureSettings) -> int:
        """The one given, else the model's positions, at most 512."""
        positions = self.shape.positions
        window = settings.window or min(positions or _DEFAULT_WINDOW, _DEFAULT_WINDOW)
        if positions and window > positions:
            raise UsageError(
                f"a window of at most {positions} tokens, the model's positions",
                got=str(window),
                where=settings.model,
                remedy=f"Use --window {positions}.",
            )
        return window

    def documents(self, settings: CaptureSettings, window: int, files: Sequence[CorpusFile]) -> WindowStream:
        """Windows of the texts in these files."""
        encoder = self.encoder
        chosen = WindowSettings(window, settings.stride, settings.bos, settings.max_documents, settings.deduplicate)
        bos = bos_of(chosen.check().bos, encoder.named_bos, encoder.front)
        tokenize = PieceTokenizer(encoder.encode, encoder.spans, encoder.merges)
        return WindowStream(read_files(files, settings.field), tokenize, chosen, bos, self.shape.vocab)

    def token_columns(self, token_ids: Sequence[np.ndarray]) -> dict[str, Any]:
        """Ids of the vocabulary, and what it calls them."""
        unique, inverse = np.unique(flat := np.concatenate(token_ids), return_inverse=True)
        names = np.asarray(self.encoder.tokens(unique.tolist()), dtype=object)
        return {"token_id": flat, "token": names[inverse]}


@dataclass(frozen=True)
class ImageReading:
    """Images prepared as the model wants them; one is a document."""

    source: ModelSource
    grid: PatchGrid
    prepare: Preprocessor
    kind: str = "images"

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of what the model is given. Raises ModelError where that is not one size for all images."""
        size = self.prepare.size
        if size is None and self.prepare.resize is not None:
            raise ModelError(
                "a preprocessor that makes all images the same size",
                got=f"one that makes the shorter edge {self.prepare.resize} pixels and crops nothing",
                where=str(self.source.path(PREPROCESSOR)),
                remedy="Set do_center_crop and crop_size there, or a height and width to resize to.",
            )
        size = size or self.grid.image
        if size != self.grid.image and not self.grid.interpolates:
            raise ModelError(
                f"images of {self.grid.image} pixels, as the model's configuration says",
                got=f"a preprocessor that makes them {size}",
                where=str(self.source.path(PREPROCESSOR)),
                remedy="Save the preprocessor that belongs to the model.",
            )
        if min(side // patch for side, patch in zip(size, self.grid.patch, strict=True)) < 1:
            got = f"images of {size} pixels"
            raise ModelError(
                f"images of at least one patch of {self.grid.patch} pixels", got=got, where=self.source.name
            )
        return size

    def window(self, settings: CaptureSettings) -> int:
        """What the model makes of an image: nothing to choose."""
        n_tokens = self.grid.length(self.size)
        reasons = {
            "window": f"an image is always the model's {n_tokens} tokens",
            "stride": "one image is one document",
            "bos": "an image has no BOS token",
            "field": "images have no fields",
        }
        for name, reason in reasons.items():
            value = getattr(settings, name)
            if value not in (None, "auto"):
                got, remedy = f"{value!r}: {reason}", f"Leave --{name} out."
                raise UsageError(f"no {name} for a model that reads images", got=got, where=name, remedy=remedy)
        return n_tokens

    def proven(self) -> ImageReading:
        """Itself: images are read in one way."""
        return self

    def documents(self, settings: CaptureSettings, window: int, files: Sequence[CorpusFile]) -> ImageStream:
        """The images in these files."""
        cap, repeated = settings.max_documents, settings.deduplicate
        return ImageStream(files, self.prepare, self.size, window, max_documents=cap, deduplicate=repeated)

    def token_columns(self, token_ids: Sequence[np.ndarray]) -> dict[str, Any]:
        """No ids, since patches are of no vocabulary; what each position is."""
        names = np.asarray(self.grid.tokens(self.size), dtype=object)
        count = len(token_ids) * len(names)
        return {"token_id": pa.nulls(count, pa.int32()), "token": np.tile(names, len(token_ids))}
