"""Before anything runs: what a capture is, what it will cost, and its documents laid out in shards.

Loads neither torch nor Prefect, so that `theodolite plan` answers at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

from storage.errors import MissingPart, StorageFull
from storage.filesystem import Filesystem, free_bytes_at, open_runs
from storage.layout import Layout, under
from storage.manifest import FileRecord, Manifest
from tasks.capture.attention_storage import SAMPLE, held_against, way_for
from tasks.capture.corpus import Documents, Reading, reading_of
from tasks.capture.cost import (
    ConfigShape,
    attention_bytes,
    memory_peak,
    operations,
    stored_bytes,
)
from tasks.capture.documents import DOCUMENTS, read_windows, record_of, write_windows
from tasks.capture.folder import Prepared
from tasks.capture.kept import Chosen
from tasks.capture.key import CaptureIdentity, CaptureSettings, blocks, capture_identity, package_versions
from tasks.capture.memory import batch_tokens, likely_device, memory_of
from tasks.corpora.files import CorpusFile, expand, files_digest
from tasks.corpora.streams import CORPUS
from tasks.models.families import require_rebuildable, why_not
from tasks.models.sources import ModelSource, on_disk, read_config, resolve
from tasks.progress import Progress, emit

__all__ = ["CapturePlan", "Described", "describe", "plan_capture", "prepare_capture", "read_windows"]

_SHARD, _TOLD_EVERY = 2048, 256


@dataclass(frozen=True)
class CapturePlan:
    """What `theodolite plan` prints: sizes in bytes, work in floating-point operations."""

    capture: str
    key: str
    model: str
    family: str
    window: int
    n_docs: int
    n_tokens: int
    left_out: dict[str, int]
    shards: int
    attention: str
    """How attention is kept: stored, rebuilt or none; `auto` resolved."""
    attention_bytes: dict[str, int]
    """Before compression, of the two ways to keep attention; of `stored` alone where it cannot be rebuilt."""
    bytes_by_kind: dict[str, int]
    bytes_total: int
    flops: int
    batch_tokens: int
    """Documents of one forward pass: as many as fit into this number of tokens, at least one."""
    memory_peak_bytes: int
    device: str
    memory_bytes: int | None
    """Of the device, in all; None where it is not on this machine."""
    free_bytes: int
    fits: bool


@dataclass(frozen=True)
class Described:
    """A capture's settings with everything that files alone can tell."""

    settings: CaptureSettings
    source: ModelSource
    config: dict[str, Any]
    shape: ConfigShape
    window: int
    identity: CaptureIdentity
    files: tuple[CorpusFile, ...]
    reading: Reading
    seen: tuple[list[int], dict[str, int]] | None = None
    """The lengths of all documents and what was left out, where deciding how attention is kept read every one."""

    def extent(self) -> tuple[str, int, str]:
        """What laying out the documents tells of its progress: (kind, how much in all, unit); 0 if nobody knows."""
        if self.settings.max_documents is not None:
            return DOCUMENTS, self.settings.max_documents, DOCUMENTS
        if any(file.kind == "dataset" for file in self.files):
            return DOCUMENTS, 0, DOCUMENTS
        return CORPUS, sum(file.size() for file in self.files), "bytes"

    def documents(self) -> Documents:
        """The documents, one after the other, as they are read; what was left out is known at the end."""
        return self.reading.documents(self.settings, self.window, self.files)


def describe(settings: CaptureSettings, files: Sequence[CorpusFile] | None = None) -> Described:
    """What files alone tell of a capture; reads every byte of a corpus that lies on this machine, for its digest.

    files: the corpus's, where they are known already.
    """
    source = resolve(settings.model)
    config = read_config(source)
    reading = reading_of(source, config)
    shape = ConfigShape.of(config, str(source.config_file))
    window = reading.window(settings)
    files = tuple(expand(settings.corpus, reading.kind) if files is None else files)
    settings, seen = _resolved(settings, reading, config, shape, window, files)
    identity = capture_identity(settings, source, files_digest(files, settings.field), window)
    return Described(settings, source, config, shape, window, identity, files, reading, seen)


def _resolved(
    settings: CaptureSettings,
    reading: Reading,
    config: dict[str, Any],
    shape: ConfigShape,
    window: int,
    files: Sequence[CorpusFile],
) -> tuple[CaptureSettings, tuple[list[int], dict[str, int]] | None]:
    """The settings with what is chosen held against the model, and `auto` decided; what `Described.seen` says."""
    settings = held_against(settings, shape, window)
    if settings.attention == "rebuilt":
        require_rebuildable(config, settings.model)
    if settings.attention != "auto":
        return _sized(settings, shape, window), None
    documents: list[Documents] = []
    seen: list[int] = []

    def lengths() -> Iterator[int]:
        documents.append(reading.documents(settings, window, files))
        for document in documents[0]:
            seen.append(len(document.token_ids))
            yield seen[-1]

    way = way_for(config, shape, Chosen.of(asdict(settings)), settings.dtype, window, lengths())
    whole = bool(seen) and len(seen) < SAMPLE
    settings = _sized(replace(settings, attention=way), shape, window)
    return settings, (seen, documents[0].left_out) if whole else None


def _sized(settings: CaptureSettings, shape: ConfigShape, window: int) -> CaptureSettings:
    """The settings with the tokens of a batch and of a shard decided, where they are left to the memory."""
    batch = settings.batch_tokens
    if not batch:
        chosen, device = Chosen.of(asdict(settings)), likely_device(settings.device)
        batch = batch_tokens(shape, window, settings.dtype, settings.query_block, chosen, device)
    return replace(settings, batch_tokens=batch, shard_tokens=settings.shard_tokens or max(_SHARD, batch))


def _attention_bytes(
    settings: CaptureSettings, config: dict[str, Any], shape: ConfigShape, lengths: list[int]
) -> dict[str, int]:
    sizes = attention_bytes(shape, lengths, Chosen.of(asdict(settings)))
    return sizes if why_not(config) is None else {"stored": sizes["stored"]}


def _plan(described: Described, lengths: list[int], left_out: dict[str, int], free: int) -> CapturePlan:
    settings, shape = described.settings, described.shape
    chosen = Chosen.of(asdict(settings))
    kinds = stored_bytes(shape, lengths, chosen)
    batches = blocks(lengths, settings.batch_tokens, padded=True)
    peak = max(memory_peak(shape, lengths, b, settings.dtype, settings.query_block, chosen) for b in batches)
    total, device = sum(kinds.values()), likely_device(settings.device)
    return CapturePlan(
        capture=described.identity.capture,
        key=described.identity.key,
        model=settings.model,
        family=str(described.config.get("model_type", "unknown")),
        window=described.window,
        n_docs=len(lengths),
        n_tokens=sum(lengths),
        left_out=left_out,
        shards=len(blocks(lengths, settings.shard_tokens, padded=False)),
        attention=settings.attention,
        attention_bytes=_attention_bytes(settings, described.config, shape, lengths),
        bytes_by_kind=kinds,
        bytes_total=total,
        flops=operations(shape, lengths),
        batch_tokens=settings.batch_tokens,
        memory_peak_bytes=peak,
        device=device,
        memory_bytes=memory_of(device),
        free_bytes=free,
        fits=total <= free,
    )


def smaller(plan: CapturePlan) -> str:
    """What makes a capture smaller, for one that does not fit."""
    sizes, way = plan.attention_bytes, ""
    if plan.attention == "stored" and sizes.get("rebuilt", sizes["stored"]) < sizes["stored"]:
        way = ", keep attention as query and key (--attention rebuilt)"
    return f"Capture fewer documents (--max-documents){way}, or store float16 (--store-dtype float16)."


def plan_capture(settings: CaptureSettings | Described, runs: str) -> CapturePlan:
    """What the capture will be and cost. Writes nothing."""
    described = settings if isinstance(settings, Described) else describe(settings)
    free = free_bytes_at(runs)
    if described.seen is not None:
        return _plan(described, *described.seen, free)
    documents = described.documents()
    lengths: list[int] = []
    for document in documents:
        lengths.append(len(document.token_ids))
        if len(lengths) % _TOLD_EVERY == 0:
            emit(Progress(DOCUMENTS, _TOLD_EVERY, DOCUMENTS))
    return _plan(described, lengths, documents.left_out, free)


def prepare_capture(settings: CaptureSettings | Described, runs: str) -> str:
    """Write down what the capture is and its documents; returns its id. The same key finds it written.

    Raises StorageFull where the plan does not fit the disk, before anything runs.
    """
    described = settings if isinstance(settings, Described) else describe(settings)
    fs, layout = open_runs(runs, create=True), Layout(described.identity.capture)
    manifest = Manifest(fs, layout)
    with fs.lock(layout.lock("prepare")):
        if _prepared(fs, manifest, described):
            return layout.capture
        try:
            _lay_out(fs, manifest, described, layout.staging("prepare"))
        finally:
            fs.remove(layout.staging("prepare"))
    return layout.capture


def _lay_out(fs: Filesystem, manifest: Manifest, described: Described, staging: str) -> None:
    layout, staged = manifest.layout, under(staging, "windows.parquet")
    documents = described.documents()
    windows, lengths = write_windows(fs, staged, documents)
    plan = _plan(described, lengths, documents.left_out, fs.free_bytes())
    if not plan.fits:
        raise StorageFull(
            f"{plan.bytes_total:,} free bytes",
            got=f"{plan.free_bytes:,}",
            where=fs.where,
            remedy=smaller(plan),
        )
    fs.rename(staged, layout.windows)
    manifest.write_capture({**_capture_record(described, plan, lengths), "windows": asdict(windows)})


def _prepared(fs: Filesystem, manifest: Manifest, described: Described) -> bool:
    """Whether the capture is prepared; what its key leaves open (device, where the model lies) is brought up to now.

    Documents that are gone or damaged make it unprepared: they are the same when they are made again.
    """
    try:
        record = Prepared.open(fs.where, manifest.layout.capture).record
        if record_of(fs, manifest.layout.windows) != FileRecord(**record["windows"]):
            return False
    except MissingPart:
        return False
    settings = _settings(described)
    if settings != record["settings"]:
        manifest.write_capture({**record, "settings": settings})
    return True


def _settings(described: Described) -> dict[str, Any]:
    """The settings as JSON keeps them, with the window and stride that hold."""
    settings = asdict(described.settings)
    window, stride = described.window, settings["stride"]
    return {**settings, "corpus": list(settings["corpus"]), "window": window, "stride": stride or window}


def _capture_record(described: Described, plan: CapturePlan, lengths: list[int]) -> dict[str, Any]:
    settings = described.settings
    return {
        "capture": plan.capture,
        "key": plan.key,
        "ingredients": described.identity.ingredients,
        "settings": _settings(described),
        "model_config": described.config,
        "model_at": on_disk(settings.model),
        "lengths": lengths,
        "shards": blocks(lengths, settings.shard_tokens, padded=False),
        "left_out": plan.left_out,
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": package_versions(),
    }
