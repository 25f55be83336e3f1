"""Images as a model wants them: resized, cropped, rescaled and normalised as its preprocessor_config.json says.

The arithmetic is that of transformers' own image processors on Pillow, to the last bit, without importing transformers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from storage.errors import ModelError, UsageError

_HALVES, _CLIP_MEAN, _CLIP_STD = (0.5,) * 3, (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
_VIT: dict[str, Any] = {"size": {"height": 224, "width": 224}, "resample": 2, "mean": _HALVES, "std": _HALVES}
_BIT = {"size": {"shortest_edge": 224}, "crop": 224, "resample": 3, "mean": _CLIP_MEAN, "std": _CLIP_STD}
_DEIT = {**_VIT, "size": {"height": 256, "width": 256}, "crop": 224, "resample": 3}
_DEFAULTS: Mapping[str, dict[str, Any]] = {"ViT": _VIT, "DeiT": _DEIT, "Bit": _BIT}
"""What transformers' class takes where the file is silent."""
_ENDINGS = ("ImageProcessorFast", "ImageProcessorPil", "ImageProcessor", "FeatureExtractor")
_REMEDY = "Save the one that belongs to the model: processor.save_pretrained(folder)."


@dataclass(frozen=True)
class Preprocessor:
    """The steps that make pixels of an image, in this order; None for one that is left out."""

    resize: tuple[int, int] | int | None
    """To (height, width), or the shorter edge to so many pixels."""
    resample: int
    """Pillow's number of the filter."""
    crop: tuple[int, int] | None
    """The middle, (height, width)."""
    scale: float | None
    mean: np.ndarray | None
    std: np.ndarray | None

    @classmethod
    def read(cls, path: Path) -> Preprocessor:
        """From a model's folder. Raises ModelError where the file is absent, damaged, or asks for what is not done."""
        if not path.is_file():
            expected = f"a {path.name} beside the model, which says how it wants images"
            raise ModelError(expected, got="none", where=str(path.parent), remedy=_REMEDY)
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ModelError(f"a {path.name} that can be read", got=str(error), where=str(path)) from error
        if not isinstance(content, dict):
            raise ModelError(f"a {path.name} with an object", got=type(content).__name__, where=str(path))
        try:
            return cls._of(content, str(path))
        except (TypeError, ValueError, KeyError) as error:
            if isinstance(error, ModelError):
                raise
            expected = f"sizes and numbers in {path.name} that can be understood"
            raise ModelError(expected, got=str(error), where=str(path), remedy=_REMEDY) from error

    @classmethod
    def _of(cls, content: dict[str, Any], where: str) -> Preprocessor:
        kind = str(content.get("image_processor_type") or content.get("feature_extractor_type") or "none")
        family = next((kind.removesuffix(end) for end in _ENDINGS if kind.endswith(end)), kind)
        if family not in _DEFAULTS or content.get("do_pad"):
            names = ", ".join(f"{name}ImageProcessor" for name in _DEFAULTS)
            got = f"{kind} with do_pad" if family in _DEFAULTS else kind
            raise ModelError(f"an image processor that is known ({names}), without padding", got=got, where=where)
        usual = _DEFAULTS[family]

        def does(step: str, otherwise: bool = True) -> bool:
            value = content.get(step)
            return otherwise if value is None else bool(value)

        def given(name: str, otherwise: Any) -> Any:
            value = content.get(name)
            return otherwise if value is None else value

        normalises = does("do_normalize")
        return cls(
            resize=_size(given("size", usual["size"]), square=family != "Bit") if does("do_resize") else None,
            resample=int(given("resample", usual["resample"])),
            crop=_pair(given("crop_size", usual.get("crop"))) if does("do_center_crop", "crop" in usual) else None,
            scale=float(given("rescale_factor", 1 / 255)) if does("do_rescale") else None,
            mean=_channels(given("image_mean", usual["mean"])) if normalises else None,
            std=_channels(given("image_std", usual["std"])) if normalises else None,
        )

    @property
    def size(self) -> tuple[int, int] | None:
        """(height, width) of whatever comes out; None where that depends on the image."""
        return self.crop or (self.resize if isinstance(self.resize, tuple) else None)

    def __call__(self, image: np.ndarray) -> np.ndarray:
        """An image (H, W, 3) uint8 → pixels (3, H', W') float32. Raises UsageError where Pillow is lacking."""
        pixels = np.moveaxis(self._resized(image), -1, 0)
        if self.crop is not None:
            pixels = _cropped(pixels, self.crop)
        if self.scale is not None:
            pixels = (pixels.astype(np.float64) * self.scale).astype(np.float32)
        pixels = pixels.astype(np.float32)
        if self.mean is not None and self.std is not None:
            pixels = (pixels - self.mean[:, None, None]) / self.std[:, None, None]
        return np.ascontiguousarray(pixels)

    def _resized(self, image: np.ndarray) -> np.ndarray:
        height, width = image.shape[:2]
        if isinstance(self.resize, int):
            short, long = sorted((height, width))
            other = int(self.resize * long / short)
            wanted = (other, self.resize) if width <= height else (self.resize, other)
        else:
            wanted = self.resize or (height, width)
        if wanted == (height, width):
            return image
        pillow = open_pillow("resizing an image")
        return np.asarray(pillow.fromarray(image).resize(wanted[::-1], resample=self.resample))


def open_pillow(where: str) -> Any:
    """Pillow's module Image; UsageError where the package is not installed."""
    try:
        from PIL import Image
    except ImportError as error:
        raise UsageError(
            "the package Pillow, which reads and resizes images",
            got="none",
            where=where,
            remedy="pip install 'theodolite[images]', or give .npy arrays (3, H, W) as the model takes them.",
        ) from error
    return Image


def _cropped(pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """The middle of (3, H, W); what is smaller is laid on black, half a pixel towards the end."""
    height, width = pixels.shape[1:]
    rows, columns = size
    if rows > height or columns > width:
        whole = np.zeros((pixels.shape[0], max(rows, height), max(columns, width)), pixels.dtype)
        top, left = (whole.shape[1] - height + 1) // 2, (whole.shape[2] - width + 1) // 2
        whole[:, top : top + height, left : left + width] = pixels
        first, second = (height - rows) // 2 + top, (width - columns) // 2 + left
        return whole[:, max(first, 0) : first + rows, max(second, 0) : second + columns]
    first, second = (height - rows) // 2, (width - columns) // 2
    return pixels[:, first : first + rows, second : second + columns]


def _size(value: Any, *, square: bool) -> tuple[int, int] | int:
    if isinstance(value, Mapping) and set(value) == {"shortest_edge"}:
        return _pixels(value["shortest_edge"])
    return _pair(value) if square or isinstance(value, Mapping) else _pixels(value)


def _pair(value: Any) -> tuple[int, int]:
    if isinstance(value, Mapping):
        if set(value) != {"height", "width"}:
            raise ValueError(f"a size of {', '.join(map(str, value))}")
        return _pixels(value["height"]), _pixels(value["width"])
    if isinstance(value, list | tuple):
        height, width = value
        return _pixels(height), _pixels(width)
    return _pixels(value), _pixels(value)


def _pixels(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"a size of {value!r} pixels")
    return value


def _channels(value: Any) -> np.ndarray:
    numbers = np.asarray(value, dtype=np.float32)
    return np.broadcast_to(numbers, (3,))
