"""How images are prepared, held against transformers' own image processors on Pillow; what is refused."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage.errors import ModelError, UsageError
from tasks.corpora.preprocessing import Preprocessor
from tests.tasks.corpora.pictures import DINO, VIT, picture

DEIT = {**VIT, "image_processor_type": "DeiTImageProcessor", "do_center_crop": True, "crop_size": 28, "resample": 3}


def read(folder: Path, content: Any) -> Preprocessor:
    path = folder / "preprocessor_config.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return Preprocessor.read(path)


@pytest.mark.parametrize(
    "content",
    [
        VIT,
        DINO,
        DEIT,  # crops 28 out of 24: laid on black
        {**DINO, "size": {"shortest_edge": 21}, "crop_size": 27},
        {**VIT, "size": 17, "do_normalize": False},
        {**VIT, "do_rescale": False, "resample": 0},
        {**DINO, "do_resize": False},
        {"image_processor_type": "ViTImageProcessorFast"},
        {"image_processor_type": "BitImageProcessor"},
        {"image_processor_type": "DeiTImageProcessor"},
    ],
    ids=lambda content: f"{content['image_processor_type']}-{len(content)}-{content.get('size')}",
)
@pytest.mark.parametrize("shape", [(40, 52), (53, 31), (24, 24)])
def test_pixels_are_those_of_transformers(content: dict[str, Any], shape: tuple[int, int], tmp_path: Path) -> None:
    image_module = pytest.importorskip("PIL.Image", reason="Pillow is not installed: pip install 'theodolite[images]'")
    kind = content["image_processor_type"].removesuffix("Fast")
    module = {"ViT": "vit", "Bit": "bit", "DeiT": "deit"}[kind.removesuffix("ImageProcessor")]
    base = f"transformers.models.{module}.image_processing"
    try:  # transformers 5 keeps the one on Pillow in a module of its own
        theirs = getattr(importlib.import_module(f"{base}_pil_{module}"), f"{kind}Pil")
    except ImportError:
        theirs = getattr(importlib.import_module(f"{base}_{module}"), kind)
    image = picture(3, *shape)
    options = {name: value for name, value in content.items() if name != "image_processor_type"}
    want = theirs(**options)(image_module.fromarray(image), return_tensors="np")["pixel_values"][0]
    prepare = read(tmp_path, content)
    got = prepare(image)
    assert got.dtype == np.float32 and got.flags.c_contiguous
    np.testing.assert_array_equal(got, want.astype(np.float32))
    assert prepare.size in (None, got.shape[1:])


def test_known_values(tmp_path: Path) -> None:
    """White is 1 and black −1 where the mean and deviation are a half."""
    content = {**VIT, "size": {"height": 2, "width": 3}}
    image = np.zeros((2, 3, 3), np.uint8)
    image[0] = 255
    pixels = read(tmp_path, content)(image)
    assert pixels.shape == (3, 2, 3)
    assert (pixels[:, 0] == 1).all() and (pixels[:, 1] == -1).all()


def test_what_older_files_say_is_understood(tmp_path: Path) -> None:
    old = {"feature_extractor_type": "ViTFeatureExtractor", "size": 24, "image_mean": 0.5, "image_std": [0.5] * 3}
    prepare = read(tmp_path, {**old, "do_resize": True, "do_normalize": True})
    assert (prepare.size, prepare.resample, prepare.scale) == ((24, 24), 2, 1 / 255)


def test_pillow_is_asked_for_only_where_an_image_is_resized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    prepare = read(tmp_path, VIT)
    assert prepare(picture(1, 24, 24)).shape == (3, 24, 24)
    with pytest.raises(UsageError, match=r"the package Pillow.*got none.*pip install 'theodolite\[images\]'"):
        prepare(picture(1))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "a preprocessor_config.json that can be read"),
        ("[]", "a preprocessor_config.json with an object, got list"),
        (
            {},
            r"an image processor that is known \(ViTImageProcessor, DeiTImageProcessor, BitImageProcessor\).*got none",
        ),
        ({"image_processor_type": "CLIPImageProcessor"}, "got CLIPImageProcessor, in "),
        ({**VIT, "do_pad": True}, "without padding, got ViTImageProcessor with do_pad"),
        ({**VIT, "size": {"height": 4}}, "sizes and numbers .*got a size of height, in .*processor.save_pretrained"),
        ({**VIT, "size": {"height": 4, "width": 0}}, "got a size of 0 pixels"),
        ({**VIT, "size": "big"}, "got a size of 'big' pixels"),
        ({**VIT, "image_mean": [1, 2]}, "sizes and numbers in preprocessor_config.json"),
        ({**VIT, "rescale_factor": "x"}, "could not convert string to float"),
    ],
)
def test_what_cannot_be_understood_is_refused(content: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=message):
        read(tmp_path, content)


def test_a_model_without_a_preprocessor_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"a preprocessor_config.json beside the model.*got none, in .*Save the one"):
        Preprocessor.read(tmp_path / "preprocessor_config.json")
