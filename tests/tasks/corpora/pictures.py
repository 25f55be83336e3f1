"""Pictures drawn for the tests: gradients with shapes on them, and the folders that models want them for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.families import tiny_model

VIT: dict[str, Any] = {
    "image_processor_type": "ViTImageProcessor",
    "do_resize": True,
    "size": {"height": 24, "width": 24},
    "resample": 2,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
DINO: dict[str, Any] = {
    **VIT,
    "image_processor_type": "BitImageProcessor",
    "size": {"shortest_edge": 32},
    "resample": 3,
    "do_center_crop": True,
    "crop_size": {"height": 20, "width": 24},
    "do_convert_rgb": True,
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
}


def picture(index: int, height: int = 40, width: int = 52) -> np.ndarray:
    """(H, W, 3) uint8: a gradient, a disc and a bar, each another for each index."""
    y, x = np.mgrid[:height, :width] / 40
    turn = 0.7 * index
    image = np.stack([x * np.cos(turn) + y, y + np.sin(turn), x * y], axis=-1) * 120 + 60
    image[(y - 0.4) ** 2 + (x - 0.3 - 0.1 * index) ** 2 < 0.05] = [250, 30 * index % 255, 10]
    image[:, 5 * index % width : 5 * index % width + 4] = [10, 200, 90]
    return np.clip(image, 0, 255).astype(np.uint8)


def save_model(folder: Path, name: str, preprocessor: dict[str, Any] | None = None) -> Path:
    """A tiny model that reads images, with what says how it wants them."""
    tiny_model(name).save_pretrained(folder)
    content = preprocessor or (DINO if name.startswith("dino") else VIT)
    (folder / "preprocessor_config.json").write_text(json.dumps(content))
    return folder


def save_pictures(folder: Path, count: int = 5) -> Path:
    """Pictures of every kind of file, sorted as 0.png, 1.jpg and so on."""
    from PIL import Image

    folder.mkdir(parents=True)
    for index in range(count):
        suffix = ("png", "jpg", "webp", "bmp", "jpeg")[index % 5]
        Image.fromarray(picture(index)).save(folder / f"{index}.{suffix}")
    return folder
