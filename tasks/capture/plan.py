"""Before anything runs: what a capture will cost, and its documents laid out in shards.

Loads neither torch nor Prefect, so that `theodolite plan` answers at once.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from storage.errors import MissingPart, StorageFull
from storage.filesystem import Filesystem, free_bytes_at, open_runs
from storage.layout import Layout, under
from storage.manifest import FileRecord, Manifest
from tasks.capture.batch_size import likely_device, memory_of
from tasks.capture.batches import group_by_tokens
from tasks.capture.cost import ConfigShape, attention_bytes, memory_peak, operations, stored_bytes
from tasks.capture.describe import Announce, CaptureDescription, DocumentLengths, announce_nothing, describe
from tasks.capture.documents import DOCUMENTS_WORK, record_of, write_windows
from tasks.capture.folder import CaptureFolder
from tasks.capture.kept import kept_of
from tasks.capture.key import package_versions
from tasks.capture.settings import CaptureSettings
from tasks.models.families import why_not
from tasks.models.sources import on_disk
from tasks.progress import Progress, emit

_REPORTED_EVERY = 256
"""Documents between two reports of progress."""


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


def _attention_bytes(
    settings: CaptureSettings, config: dict[str, Any], shape: ConfigShape, lengths: list[int]
) -> dict[str, int]:
    sizes = attention_bytes(shape, lengths, settings.model_dump())
    return sizes if why_not(config) is None else {"stored": sizes["stored"]}


def _plan(described: CaptureDescription, measured: DocumentLengths, free: int) -> CapturePlan:
    settings, shape, lengths = described.settings, described.shape, measured.lengths
    kept = kept_of(settings.model_dump(), gated=shape.gated)
    kinds = stored_bytes(shape, lengths, kept)
    batches = group_by_tokens(lengths, settings.batch_tokens, padded=True)
    peak = max(memory_peak(shape, lengths, b, settings.dtype, settings.query_block, kept) for b in batches)
    total, device = sum(kinds.values()), likely_device(settings.device)
    return CapturePlan(
        capture=described.identity.capture,
        key=described.identity.key,
        model=settings.model,
        family=str(described.config.get("model_type", "unknown")),
        window=described.window,
        n_docs=len(lengths),
        n_tokens=sum(lengths),
        left_out=measured.left_out,
        shards=len(group_by_tokens(lengths, settings.shard_tokens, padded=False)),
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
    sizes, attention = plan.attention_bytes, ""
    if plan.attention == "stored" and sizes.get("rebuilt", sizes["stored"]) < sizes["stored"]:
        attention = ", keep attention as query and key (--attention rebuilt)"
    return f"Capture fewer documents (--max-documents){attention}, or store float16 (--store-dtype float16)."


def plan_capture(settings: CaptureSettings, runs: str, announce: Announce = announce_nothing) -> CapturePlan:
    """What the capture will be and cost. Writes nothing. announce: shows the progress of reading the corpus."""
    described = describe(settings, announce)
    with announce(*described.extent()):
        return _plan(described, described.measured or _measure(described), free_bytes_at(runs))


def _measure(described: CaptureDescription) -> DocumentLengths:
    """Read every document for its length."""
    documents = described.documents()
    lengths: list[int] = []
    for document in documents:
        lengths.append(len(document.token_ids))
        if len(lengths) % _REPORTED_EVERY == 0:
            emit(Progress(DOCUMENTS_WORK, _REPORTED_EVERY, DOCUMENTS_WORK))
    return DocumentLengths(lengths, documents.left_out)


def prepare_capture(settings: CaptureSettings, runs: str, announce: Announce = announce_nothing) -> str:
    """Write down what the capture is and its documents; returns its id. The same key finds it written.

    announce: shows the progress of reading the corpus. Raises StorageFull where the plan does not fit the disk, before
    anything runs.
    """
    described = describe(settings, announce)
    with announce(*described.extent()):
        return _prepare(described, runs)


def _prepare(described: CaptureDescription, runs: str) -> str:
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


def _lay_out(fs: Filesystem, manifest: Manifest, described: CaptureDescription, staging: str) -> None:
    layout, staged = manifest.layout, under(staging, "windows.parquet")
    documents = described.proven().documents()
    windows, lengths = write_windows(fs, staged, documents)
    plan = _plan(described, DocumentLengths(lengths, documents.left_out), fs.free_bytes())
    if not plan.fits:
        raise StorageFull(
            f"{plan.bytes_total:,} free bytes",
            got=f"{plan.free_bytes:,}",
            where=fs.where,
            remedy=smaller(plan),
        )
    fs.rename(staged, layout.windows)
    manifest.write_capture({**_capture_record(described, plan, lengths), "windows": asdict(windows)})


def _prepared(fs: Filesystem, manifest: Manifest, described: CaptureDescription) -> bool:
    """Whether the capture is prepared; what its key leaves open (device, where the model lies) is brought up to now.

    Documents that are gone or damaged make it unprepared: they are the same when they are made again.
    """
    try:
        record = CaptureFolder.open(fs.where, manifest.layout.capture).record
        if record_of(fs, manifest.layout.windows) != FileRecord(**record["windows"]):
            return False
    except MissingPart:
        return False
    settings = _settings(described)
    if settings != record["settings"]:
        manifest.write_capture({**record, "settings": settings})
    return True


def _settings(described: CaptureDescription) -> dict[str, Any]:
    """The settings as JSON keeps them, with the window and stride that hold."""
    settings = described.settings.model_dump()
    window, stride = described.window, settings["stride"]
    return {**settings, "corpus": list(settings["corpus"]), "window": window, "stride": stride or window}


def _capture_record(described: CaptureDescription, plan: CapturePlan, lengths: list[int]) -> dict[str, Any]:
    settings = described.settings
    return {
        "capture": plan.capture,
        "key": plan.key,
        "ingredients": described.identity.ingredients,
        "settings": _settings(described),
        "model_config": described.config,
        "model_at": on_disk(settings.model),
        "lengths": lengths,
        "shards": group_by_tokens(lengths, settings.shard_tokens, padded=False),
        "left_out": plan.left_out,
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": package_versions(),
    }
