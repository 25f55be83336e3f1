"""What makes a capture and a stage run the same as another: the ingredients of their keys."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import PurePosixPath
from typing import Any

from storage.errors import UsageError
from storage.keys import digest, slug
from storage.numbers import Positions, number_set, written
from tasks.capture.kept import DTYPES, OTHER_KINDS, WAYS, canonical_dtypes, canonical_kinds
from tasks.models.loading import DEVICES
from tasks.models.sources import ModelSource, model_digest, tokenizer_digest
from tasks.stages.contract import Stage

CAPTURE_VERSION = 3
"""Raised whenever a change of the code changes what a capture stores."""


_IF_CHOSEN = ("layers", "heads", "positions", "keep")
"""Settings that enter the key only where they say something: without them it is what it was before there were any."""


@dataclass(frozen=True)
class CaptureSettings:
    """What a user may choose about a capture. Everything here but `device` enters the key."""

    model: str
    corpus: tuple[str, ...]
    field: str | None = None
    window: int | None = None
    """Tokens per document, its BOS included; None: the model's positions, at most 512."""
    stride: int | None = None
    max_documents: int | None = None
    deduplicate: bool = False
    """Leave out documents whose token ids came before."""
    bos: str = "auto"
    dtype: str = "float32"
    store_dtype: str = "float32"
    """One for all kinds, or by kind: attention=float16,residual=float32."""
    attention: str = "auto"
    """stored, rebuilt, none, or auto: the smaller of the first two, decided when the capture is planned; the key's
    ingredient is what was decided."""
    layers: str | None = None
    """The layers that are kept, as 0-5,10; None for all."""
    heads: str | None = None
    """The query heads whose attention is kept, as 0-3,7, with the keys and values that they look at; None for all."""
    positions: str | None = None
    """The query positions whose attention is kept, as 0-31,last; None for all."""
    keep: str | None = None
    """Which of value, output_input and residual are kept, separated by commas; None for all."""
    padding: str = "right"
    query_block: int = 128
    batch_tokens: int = 0
    """Documents of one forward pass: as many as fit into this number of tokens, at least one. 0: decided from the
    memory of the device when the capture is planned (tasks/capture/memory.py)."""
    shard_tokens: int = 0
    """Documents of one shard: as many as fit into this number of tokens, at least one. 0: 2,048, or one batch where
    that is more."""
    device: str = "auto"

    def __post_init__(self) -> None:
        choices_of = {"dtype": DTYPES, "attention": WAYS, "padding": ("right", "left"), "device": DEVICES}
        for name, choices in choices_of.items():
            if getattr(self, name) not in choices:
                raise UsageError(f"one of {', '.join(choices)}", got=repr(getattr(self, name)), where=name)
        self._choose()
        if self.window is not None and self.window < 2:
            raise UsageError("a window of at least 2 tokens", got=str(self.window), where="window")
        least = {"stride": 1, "query_block": 1, "batch_tokens": 0, "shard_tokens": 0, "max_documents": 1}
        for name, number in least.items():
            value = getattr(self, name)
            if value is not None and value < number:
                raise UsageError(f"a number of at least {number}", got=str(value), where=name)

    def _choose(self) -> None:
        """What is kept, in the words that are the same for the same choice, so that its key is the same too."""
        object.__setattr__(self, "store_dtype", canonical_dtypes(self.store_dtype))
        for name in ("layers", "heads"):
            if (numbers := getattr(self, name)) is not None:
                object.__setattr__(self, name, written(number_set(numbers, name)))
        if self.positions is not None:
            object.__setattr__(self, "positions", str(Positions.parse(self.positions)))
        if self.keep is None:
            return
        kinds = canonical_kinds(self.keep)
        if kinds == "" and self.attention == "none":
            expected = f"something to keep: attention, or some of {', '.join(OTHER_KINDS)}"
            raise UsageError(expected, got="nothing", where="keep")
        object.__setattr__(self, "keep", kinds)


@dataclass(frozen=True)
class CaptureIdentity:
    """A capture's id and key, and what the key was made of."""

    capture: str
    key: str
    ingredients: dict[str, Any]


def capture_identity(
    settings: CaptureSettings, source: ModelSource, corpus_digest: str, window: int
) -> CaptureIdentity:
    """The identity of the capture that these settings describe; reads the model's files, loads nothing."""
    choices = asdict(settings)
    for name in ("device", "model", "corpus", "window"):
        del choices[name]
    choices = {name: value for name, value in choices.items() if name not in _IF_CHOSEN or value is not None}
    ingredients = {
        **choices,
        "window": window,
        "stride": settings.stride or window,
        "model_digest": model_digest(source),
        "tokenizer_digest": tokenizer_digest(source),
        "corpus_digest": corpus_digest,
        "capture_version": CAPTURE_VERSION,
    }
    key = digest(ingredients)
    return CaptureIdentity(f"{slug(model_title(source))}-{slug(corpus_title(settings))}-{key[:10]}", key, ingredients)


def corpus_title(settings: CaptureSettings) -> str:
    """A short name of the corpus: the first file's, or its folder's where the file is a pattern."""
    path = PurePosixPath(settings.corpus[0])
    plain = [part for part in reversed(path.parts) if not set(part) & set("*?[]/")]
    return plain[0].split(".")[0] if plain else "corpus"


def model_title(source: ModelSource) -> str:
    """A short name of the model: the last part of what the user gave."""
    name = PurePosixPath(source.name.rstrip("/"))
    return name.stem if source.gguf_file else name.name


def stage_key(stage: Stage, parameters: Any, capture_key: str, seed: int) -> str:
    """A stage run's key: name, version, parameters and what lies in their files, seed, and the capture's key."""
    return digest(
        {
            "stage": stage.name,
            "version": stage.version,
            "parameters": stage.ingredients(parameters),
            "seed": seed,
            "capture": capture_key,
        }
    )


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


def blocks(sizes: list[int], limit: int, *, padded: bool) -> list[list[int]]:
    """Consecutive items in groups of at most `limit` tokens, at least one item each; indices into `sizes`.

    `padded` counts every item as long as the longest of its group, as a forward pass does.
    """
    groups: list[list[int]] = []
    total, longest = 0, 0
    for index, size in enumerate(sizes):
        longest = max(longest, size)
        grown = longest * (len(groups[-1]) + 1) if padded and groups else total + size
        if not groups or grown > limit:
            groups.append([])
            longest, total = size, 0
        groups[-1].append(index)
        total += size
    return groups
