"""What makes a capture the same as another: the ingredients of its key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import PurePosixPath
from typing import Any

from storage.keys import digest, slug
from tasks.capture.settings import CaptureSettings, option, options
from tasks.models.families import revisions
from tasks.models.sources import ModelSource, model_digest, tokenizer_digest

CAPTURE_VERSION = 4
"""Raised whenever a change of the code changes what every capture stores; where it changes captures of some models
alone, their part's version in `families.revisions` is."""


@dataclass(frozen=True)
class CaptureIdentity:
    """A capture's id and key, and what the key was made of."""

    capture: str
    key: str
    ingredients: dict[str, Any]


def capture_identity(
    settings: CaptureSettings, source: ModelSource, config: Mapping[str, Any], corpus_digest: str, window: int
) -> CaptureIdentity:
    """The identity of the capture that these settings describe; reads the model's files, loads nothing.

    config: the model's configuration.
    """
    changed = revisions(config)
    ingredients = {
        **_values_in_key(settings),
        "window": window,
        "stride": settings.stride or window,
        "model_digest": model_digest(source),
        "tokenizer_digest": tokenizer_digest(source),
        "corpus_digest": corpus_digest,
        "capture_version": CAPTURE_VERSION,
        **({"revisions": changed} if changed else {}),
    }
    key = digest(ingredients)
    return CaptureIdentity(f"{slug(model_title(source))}-{slug(corpus_title(settings))}-{key[:10]}", key, ingredients)


def _values_in_key(settings: CaptureSettings) -> dict[str, Any]:
    """The options that enter the key as their values, as each one's declaration says."""
    values = {name: getattr(settings, name) for name, option in options() if option.in_key.startswith("value")}
    return {name: value for name, value in values.items() if value is not None or option(name).in_key == "value"}


def corpus_title(settings: CaptureSettings) -> str:
    """A short name of the corpus: the first file's, or its folder's where the file is a pattern."""
    path = PurePosixPath(settings.corpus[0])
    plain = [part for part in reversed(path.parts) if not set(part) & set("*?[]/")]
    return plain[0].split(".")[0] if plain else "corpus"


def model_title(source: ModelSource) -> str:
    """A short name of the model: the last part of what the user gave."""
    name = PurePosixPath(source.name.rstrip("/"))
    return name.stem if source.gguf_file else name.name


def package_versions() -> dict[str, str]:
    """Versions of what can change a number, for the table of captures."""
    found = {}
    named = ("torch", "transformers", "tokenizers", "zarr", "numcodecs", "numpy", "pyarrow", "pillow")
    for package in ("theodolite", *named):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed as a package"
    return found
