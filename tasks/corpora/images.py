"""Images as documents: one image is one document, and its tokens are patches."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Sequence

import numpy as np

from storage.errors import CorpusError
from tasks.corpora.files import CorpusFile, unreadable
from tasks.corpora.preprocessing import Preprocessor, open_pillow
from tasks.corpora.streams import opened
from tasks.corpora.windows import NO_TOKEN, REPEATED, Document, Seen

_DEEP = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")
"""Pillow's modes of more than 8 bits a channel, which it would cut off."""


class ImageStream:
    """The documents of images, prepared as they are asked for; `left_out` says what was read so far.

    One image is in memory at a time, and 16 bytes each where repeated ones are left out.
    """

    def __init__(
        self,
        files: Sequence[CorpusFile],
        prepare: Preprocessor,
        size: tuple[int, int],
        n_tokens: int,
        *,
        max_documents: int | None = None,
        deduplicate: bool = False,
    ) -> None:
        """size: (height, width) of the pixels that the model is given; n_tokens: what it makes of them.

        While preparing: CorpusError naming an image that cannot be read or does not come out in that size; UsageError
        where Pillow is needed and is not there.
        """
        self._files, self._prepare, self._size, self._n_tokens = files, prepare, size, n_tokens
        self._cap, self._seen = max_documents, Seen() if deduplicate else None
        self.left_out = {REPEATED: 0} if deduplicate else {}

    def __iter__(self) -> Iterator[Document]:
        found = 0
        for file in self._files:
            ids = np.full(self._n_tokens, NO_TOKEN, np.int32)
            document = Document(ids, file.name, pixels=self._pixels(file))
            if self._seen is not None and self._seen.has(document):
                self.left_out[REPEATED] += 1
                continue
            found += 1
            yield document
            if found == self._cap:
                return

    def _pixels(self, file: CorpusFile) -> np.ndarray:
        content = read_array(file) if file.kind == "array" else read_image(file)
        if content.dtype == np.uint8:
            content = self._prepare(content)
        if content.shape != (3, *self._size):
            raise CorpusError(
                f"an image that comes out as pixels of shape {(3, *self._size)}",
                got=str(content.shape),
                where=file.place(),
                remedy="Resize it to the model's size, or leave it out.",
            )
        return content


def read_image(file: CorpusFile) -> np.ndarray:
    """(H, W, 3) uint8: upright as its camera noted, colours as RGB, without transparency. Raises CorpusError."""
    pillow = open_pillow(file.place())
    from PIL import ImageOps

    data = _bytes(file)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pillow.DecompressionBombWarning)
            with pillow.open(io.BytesIO(data)) as image:
                if image.mode in _DEEP:
                    raise CorpusError(
                        "an image of 8 bits a channel",
                        got=f"one of Pillow's mode {image.mode}",
                        where=file.place(),
                        remedy="Convert it to 8 bits, or give a .npy array (3, H, W) as the model takes it.",
                    )
                return np.array(ImageOps.exif_transpose(image).convert("RGB"))
    except CorpusError:
        raise
    except Exception as error:  # Pillow's readers raise whatever their format's parser meets
        raise unreadable(file, error) from error


def read_array(file: CorpusFile) -> np.ndarray:
    """A .npy file: an image (H, W, 3) uint8, or pixels (3, H, W) float32 that need nothing. Raises CorpusError."""
    try:
        array = np.load(io.BytesIO(_bytes(file)), allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise unreadable(file, error) from error
    shape: tuple[int, ...] = getattr(array, "shape", ())
    kind: np.dtype = getattr(array, "dtype", np.dtype(object))
    is_image = kind == np.uint8 and len(shape) == 3 and shape[-1] == 3 and 0 not in shape
    is_pixels = kind.kind == "f" and len(shape) == 3 and shape[0] == 3
    if not (is_image or is_pixels):
        raise CorpusError(
            "an array (H, W, 3) of uint8, or (3, H, W) of floats as the model takes them",
            got=f"{shape} of {kind}",
            where=file.place(),
            remedy="Save it in one of the two ways, or leave it out.",
        )
    if is_pixels and not np.isfinite(array).all():
        raise CorpusError("finite pixels", got="NaN or infinity", where=file.place(), remedy="Leave it out.")
    return array if is_image else np.ascontiguousarray(array, dtype=np.float32)


def _bytes(file: CorpusFile) -> bytes:
    try:
        with opened(file) as stream:
            return stream.read()
    except OSError as error:
        raise unreadable(file, error) from error
