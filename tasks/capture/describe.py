"""What files alone tell of a capture: its settings made definite, its model's sizes, its corpus, its identity.

Loads neither torch nor Prefect, so that `theodolite plan` answers at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from tasks.capture.attention_storage import SAMPLE, fit_to_model, smaller_storage, stored_for_any_length
from tasks.capture.batch_size import batch_tokens, likely_device
from tasks.capture.corpus import Documents, Reading, reading_of
from tasks.capture.cost import ConfigShape
from tasks.capture.documents import DOCUMENTS_WORK
from tasks.capture.kept import kept_of
from tasks.capture.key import CaptureIdentity, capture_identity
from tasks.capture.settings import CaptureSettings
from tasks.corpora.files import CorpusFile, expand, files_digest
from tasks.corpora.streams import CORPUS
from tasks.models.families import require_rebuildable
from tasks.models.sources import ModelSource, model_size, read_config, resolve
from tasks.progress import DIGEST

Announce = Callable[[str, float, str], AbstractContextManager[object]]
"""Shows the progress of work of a kind, so much in all, in a unit."""

_SHARD_TOKENS = 2048


@dataclass(frozen=True)
class DocumentLengths:
    """The length of every document of a corpus in tokens, and how many were left out by reason."""

    lengths: list[int]
    left_out: dict[str, int]


@dataclass(frozen=True)
class CaptureDescription:
    """A capture's settings with everything that files alone can tell."""

    settings: CaptureSettings
    source: ModelSource
    config: dict[str, Any]
    shape: ConfigShape
    window: int
    identity: CaptureIdentity
    files: tuple[CorpusFile, ...]
    reading: Reading
    measured: DocumentLengths | None = None
    """The lengths, where choosing how attention is kept read every document."""

    def extent(self) -> tuple[str, int, str]:
        """The progress that laying out the documents reports: (kind, how much in all, unit); 0 if nobody knows."""
        if self.settings.max_documents is not None:
            return DOCUMENTS_WORK, self.settings.max_documents, DOCUMENTS_WORK
        if any(file.kind == "dataset" for file in self.files):
            return DOCUMENTS_WORK, 0, DOCUMENTS_WORK
        return CORPUS, sum(file.size() for file in self.files), "bytes"

    def documents(self) -> Documents:
        """The documents, one after the other, as they are read; what was left out is known at the end."""
        return self.reading.documents(self.settings, self.window, self.files)

    def proven(self) -> CaptureDescription:
        """The same with documents that may be kept: their token ids are transformers'."""
        return replace(self, reading=self.reading.proven())


def announce_nothing(_kind: str, _total: float, _unit: str) -> AbstractContextManager[object]:
    return nullcontext()


def describe(settings: CaptureSettings, announce: Announce = announce_nothing) -> CaptureDescription:
    """What files alone tell of a capture; reads every byte of a corpus that lies on this machine, for its digest.

    announce: shows the progress of the reading.
    """
    source = resolve(settings.model)
    config = read_config(source)
    reading = reading_of(source, config)
    files = tuple(expand(settings.corpus, reading.kind))
    size = model_size(source) + sum(file.size() for file in files if file.origin is None)
    with announce(DIGEST, size, "bytes"):
        shape = ConfigShape.of(config, str(source.config_file))
        window = reading.window(settings)
        settings = fit_to_model(settings, shape, window)
        settings, measured = _with_storage(settings, reading, config, shape, window, files)
        settings = _with_sizes(settings, shape, window)
        identity = capture_identity(settings, source, config, files_digest(files, settings.field), window)
    return CaptureDescription(settings, source, config, shape, window, identity, files, reading, measured)


def _with_storage(
    settings: CaptureSettings,
    reading: Reading,
    config: dict[str, Any],
    shape: ConfigShape,
    window: int,
    files: Sequence[CorpusFile],
) -> tuple[CaptureSettings, DocumentLengths | None]:
    """The settings with `auto` decided, from the first documents where their lengths matter; and the lengths of all,
    where there are no more than those."""
    if settings.attention == "rebuilt":
        require_rebuildable(config, settings.model)
    if settings.attention != "auto":
        return settings, None
    choices = settings.model_dump()
    if stored_for_any_length(config, shape, choices, window):
        return settings.changed(attention="stored"), None
    documents = reading.documents(settings, window, files)
    lengths = [len(document.token_ids) for document in islice(documents, SAMPLE)]
    every = DocumentLengths(lengths, documents.left_out) if 0 < len(lengths) < SAMPLE else None
    return settings.changed(attention=smaller_storage(shape, lengths, choices)), every


def _with_sizes(settings: CaptureSettings, shape: ConfigShape, window: int) -> CaptureSettings:
    """The settings with the tokens of a batch and of a shard decided, where they are left to the memory."""
    batch = settings.batch_tokens
    if not batch:
        kept, device = kept_of(settings.model_dump()), likely_device(settings.device)
        batch = batch_tokens(shape, window, settings.dtype, settings.query_block, kept, device)
    return settings.changed(batch_tokens=batch, shard_tokens=settings.shard_tokens or max(_SHARD_TOKENS, batch))
