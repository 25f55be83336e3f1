"""What every test may ask for: the real models and text, and quiet single-threaded torch."""

from __future__ import annotations

import gc
import os
import signal
import sys
from pathlib import Path

import pytest
from jaxtyping import install_import_hook

# Before anything imports the kernels: their jaxtyping shapes are checked in every test, and never in production.
install_import_hook("tasks.kernels", "beartype.beartype")

# A process that was started in the background ignores Ctrl-C, and so would the commands that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parent.parent


def fixtures_folder() -> Path | None:
    """The folder with `models/` and `data/`: THEODOLITE_FIXTURES, or `shared` beside the project."""
    for candidate in (os.environ.get("THEODOLITE_FIXTURES"), ROOT.parent / "shared"):
        if candidate and (Path(candidate) / "models").is_dir():
            return Path(candidate).resolve()
    return None


def pytest_collection_finish() -> None:
    """What all test modules imported stays: the captures' own collections of garbage need not look through it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def fixtures() -> Path:
    folder = fixtures_folder()
    if folder is None:
        pytest.skip("real models and text are absent: set THEODOLITE_FIXTURES to a folder with models/ and data/")
    return folder


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Tests run side by side: each keeps to one core."""
    if "torch" in sys.modules:
        import torch

        torch.set_num_threads(1)
