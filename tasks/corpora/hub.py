"""Corpora that are data sets of the Hugging Face hub, `hf:NAME[/CONFIG][:SPLIT]`, through the package datasets.

Its rows are streamed: nothing is downloaded ahead of what is read, and a cap on documents ends the download. The
revision of the data set (its commit on the hub) stands for its bytes in a corpus's digest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from storage.errors import CorpusError, UnknownName, UsageError

SCHEME = "hf:"
DEFAULT_SPLIT = "train"
_FORM = "hf:NAME, hf:OWNER/NAME, hf:OWNER/NAME/CONFIG, each with :SPLIT after it or without"


@dataclass(frozen=True)
class HubDataset:
    """A data set as it was named."""

    name: str
    """NAME, or OWNER/NAME."""
    config: str | None
    split: str | None

    def __str__(self) -> str:
        parts = [self.name, *([self.config] if self.config else [])]
        return f"{SCHEME}{'/'.join(parts)}{f':{self.split}' if self.split else ''}"

    @property
    def source(self) -> str:
        """What rows of tables call it."""
        return str(self).removeprefix(SCHEME)

    def revision(self) -> str:
        """What the rows depend on: the data set's revision, its configuration and split, as one text."""
        builder = _builder(self)
        return "\0".join([str(builder.hash), str(builder.config.name), self._split(_streams(self))])

    def rows(self) -> tuple[dict[str, bool], Iterator[dict[str, Any]]]:
        """(field → whether it holds a string, the rows as they are read)."""
        streams = _streams(self)
        stream = streams[self._split(streams)]
        if stream.features is None:  # a format without a schema: the first row says it
            stream = stream._resolve_features()
        kinds = {name: getattr(f, "dtype", None) in ("string", "large_string") for name, f in stream.features.items()}
        return kinds, self._read(stream)

    def _split(self, known: Any) -> str:
        if self.split is not None:
            if self.split not in known:
                raise UnknownName.among("split", self.split, known, where=str(self))
            return self.split
        if DEFAULT_SPLIT in known:
            return DEFAULT_SPLIT
        if len(known) == 1:
            return str(next(iter(known)))
        raise UsageError("a split", got="none", where=str(self), remedy=f"Add one of :{', :'.join(known)}.")

    def _read(self, stream: Any) -> Iterator[dict[str, Any]]:
        try:
            yield from stream
        except CorpusError:
            raise
        except Exception as error:  # datasets passes on what fsspec, pyarrow and the hub raise
            raise _unreadable(self, error) from error


def parse(text: str) -> HubDataset:
    """The data set that `hf:…` names. UsageError where it does not have that form."""
    path, colon, split = text.removeprefix(SCHEME).partition(":")
    parts = path.split("/")
    if not all(part.strip() for part in parts) or len(parts) > 3 or (colon and not split.strip()):
        raise UsageError(_FORM, got=f"'{text}'", where="--corpus")
    return HubDataset("/".join(parts[:2]), parts[2] if len(parts) == 3 else None, split or None)


@lru_cache(maxsize=8)
def _builder(dataset: HubDataset) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise UsageError(
            "the package datasets, which reads the hub's data sets",
            got="none",
            where=str(dataset),
            remedy="pip install 'theodolite[hub]', or give files of this machine.",
        ) from error
    try:
        return datasets.load_dataset_builder(dataset.name, dataset.config)
    except Exception as error:  # datasets passes on what fsspec, pyarrow and the hub raise
        raise _unreadable(dataset, error) from error


@lru_cache(maxsize=8)
def _streams(dataset: HubDataset) -> Any:
    """Split → rows."""
    try:
        return _builder(dataset).as_streaming_dataset()
    except CorpusError:
        raise
    except UsageError:
        raise
    except Exception as error:  # datasets passes on what fsspec, pyarrow and the hub raise
        raise _unreadable(dataset, error) from error


def _unreadable(dataset: HubDataset, error: Exception) -> CorpusError:
    got = (str(error).strip() or type(error).__name__).splitlines()[0]
    return CorpusError(
        "a data set of the hub that can be read",
        got=got,
        where=str(dataset),
        remedy=f"Look at its name, configuration and the network; the form is {_FORM}.",
    )
