"""The manifest: what a capture is, and what of it is done. Nothing else decides that anything is done.

A part is done if its record is there and every file that the record names is there with its size. Records are written
before the files are renamed into place, so a process killed anywhere leaves a part either done or to be replaced.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import google_crc32c
import numpy as np

from storage.errors import AGAIN, ForeignStore, MissingPart, StoreError, UnknownName
from storage.filesystem import Filesystem
from storage.layout import Layout, under

FORMAT = 1
"""The format of everything in a run folder; raised when an older version could not read what a newer one wrote."""

_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class FileRecord:
    """A file's size in bytes and the CRC-32C of its bytes, 8 hex digits.

    A sealed file ends with the CRC-32C of what comes before (a Zarr chunk): its record holds that one, since the CRC of
    a whole sealed file is the same number for all of them.
    """

    size: int
    crc32c: str
    sealed: bool = False

    @classmethod
    def of(cls, data: bytes | memoryview) -> FileRecord:
        checksum = Checksum()
        checksum.update(data)
        return checksum.record()


SEAL_BYTES = 4
"""The CRC-32C, little-endian, at the end of a sealed file."""


class Checksum:
    """Size and CRC-32C of bytes that come in pieces."""

    def __init__(self) -> None:
        self.size, self._crc = 0, 0

    def update(self, data: bytes | memoryview) -> None:
        view = np.frombuffer(data, dtype=np.uint8)  # the checksum takes a writable memoryview only so, without a copy
        self._crc = google_crc32c.extend(self._crc, view)
        self.size += view.nbytes

    def record(self) -> FileRecord:
        return FileRecord(self.size, f"{self._crc:08x}")

    def differing(self, expected: FileRecord, seal: bytes = b"") -> str:
        """The checksum that is not the recorded one, else "": that of the bytes so far, or the seal that was read."""
        found = [f"{self._crc:08x}", *([f"{int.from_bytes(seal, 'little'):08x}"] if expected.sealed else [])]
        return next((checksum for checksum in found if checksum != expected.crc32c), "")

    def seal(self) -> bytes:
        """What ends a sealed file whose other bytes came so far."""
        return self._crc.to_bytes(SEAL_BYTES, "little")

    def sealed_record(self) -> FileRecord:
        """The record of those bytes and their seal as one file."""
        return FileRecord(self.size + SEAL_BYTES, f"{self._crc:08x}", sealed=True)


@dataclass(frozen=True)
class PartRecord:
    """One published part: its files (paths relative to WHERE), rows per table, and counts for the quality record."""

    files: Mapping[str, FileRecord]
    rows: Mapping[str, int] = field(default_factory=dict)
    quality: Mapping[str, int] = field(default_factory=dict)


def placed(files: Mapping[str, FileRecord], folder: str) -> dict[str, FileRecord]:
    """Records of files named relative to a folder, as a manifest names them: relative to WHERE."""
    return {under(folder, name): record for name, record in files.items()}


STAGE_FIELDS = ("stage", "key", "version", "status", "requested_at")
"""What the record of every run of a stage says; a stage's task says more."""


def require(record: dict[str, Any], fields: Iterable[str], where: str) -> dict[str, Any]:
    """The record itself if it says all of this, else ForeignStore naming what it lacks."""
    if missing := [name for name in fields if name not in record]:
        raise _foreign(f"a record with {', '.join(missing)}", "one without", where)
    return record


class Manifest:
    """The manifest of one capture in a place of runs."""

    def __init__(self, fs: Filesystem, layout: Layout) -> None:
        self.fs, self.layout = fs, layout

    # ---- the capture
    def write_capture(self, capture: Mapping[str, Any]) -> None:
        """State what this capture is (plain JSON values); the format is added."""
        self._write(self.layout.capture_record, capture)

    def read_capture(self) -> dict[str, Any]:
        """What this capture is. Raises MissingPart, or ForeignStore for another program's or a newer version's."""
        return self._read(self.layout.capture_record)

    # ---- parts
    def publish(self, record_path: str, record: PartRecord, moves: Iterable[tuple[str, str]]) -> None:
        """Make a part done: its record first, then each (source, target) of `moves` renamed, in order.

        What lay at the targets goes first: a damaged file of the right size would make the new record look fulfilled.
        """
        moves = list(moves)
        for _, target in moves:
            self.fs.remove(target)
        files = {path: _as_json(file) for path, file in record.files.items()}
        self._write(record_path, {"files": files, "rows": dict(record.rows), "quality": dict(record.quality)})
        for source, target in moves:
            self.fs.rename(source, target)

    def published(self, record_path: str) -> PartRecord | None:
        """The record of a part if it is done, else None: no record, or a file of it gone or of another size."""
        try:
            record = self.read_part(record_path)
        except MissingPart:
            return None
        return record if all(self._size(path) == file.size for path, file in record.files.items()) else None

    def read_part(self, record_path: str) -> PartRecord:
        """A part's record as it was written, whether or not its files are there."""
        data = self._read(record_path)
        try:
            files = {path: FileRecord(**file) for path, file in data["files"].items()}
            return PartRecord(files, dict(data["rows"]), dict(data["quality"]))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise _foreign("the record of a part", "JSON of another shape", self.fs.absolute(record_path)) from error

    def verify(self, record_path: str) -> list[str]:
        """Reread every byte that a record names; each problem is a line that begins with the file it is about."""
        try:
            record = self.read_part(record_path)
        except StoreError as error:
            return [f"{record_path}: {error}"]
        checked = (self._problem(path, file) for path, file in record.files.items())
        return [problem for problem in checked if problem]

    # ---- stages
    def write_stage(self, stage: str, key: str, run: Mapping[str, Any]) -> None:
        """State what one run of a stage is and how far it is (plain JSON values)."""
        self._write(self.layout.stage_record(stage, key), run)

    def read_stage(self, stage: str, key: str) -> dict[str, Any]:
        """What a run of a stage is. Raises MissingPart, or ForeignStore for a record that lacks what every run says."""
        path = self.layout.stage_record(stage, key)
        return require(self._read(path), STAGE_FIELDS, self.fs.absolute(path))

    def stage_runs(self) -> list[dict[str, Any]]:
        """Every run of every stage, as written, ordered by stage and key."""
        return [
            self.read_stage(stage, key)
            for stage in self.fs.children(self.layout.stage_records_root)
            for key in self.fs.children(under(self.layout.stage_records_root, stage))
            if self.fs.exists(self.layout.stage_record(stage, key))
        ]

    def parts(self, stage: str, key: str) -> dict[str, PartRecord]:
        """The done parts of one run of a stage, by the part's name, in order: shards, then the final part."""
        names = self.fs.children(self.layout.stage_folder(stage, key))
        parts = [n.removeprefix("part-").removesuffix(".json") for n in names if n.startswith("part-")]
        records = ((part, self.published(self.layout.part_record(stage, key, part))) for part in parts)
        return {part: record for part, record in records if record is not None}

    def _write(self, path: str, content: Mapping[str, Any]) -> None:
        text = json.dumps({**content, "format": FORMAT}, indent=1, sort_keys=True, allow_nan=False)
        self.fs.write_bytes(path, (text + "\n").encode())

    def _read(self, path: str) -> dict[str, Any]:
        where = self.fs.absolute(path)
        try:
            content = json.loads(self.fs.read_bytes(path))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise _foreign("a record of Theodolite (JSON)", f"something else ({error})", where) from error
        if not isinstance(content, dict) or not isinstance(content.get("format"), int):
            raise _foreign("a record of Theodolite with its format", "JSON without one", where)
        if content["format"] > FORMAT:
            raise ForeignStore(
                f"a store of format {FORMAT} or older",
                got=f"format {content['format']}",
                where=where,
                remedy="A newer version of Theodolite wrote it: upgrade, or use another folder.",
            )
        return content

    def _size(self, path: str) -> int | None:
        try:
            return self.fs.size(path)
        except MissingPart:
            return None

    def _problem(self, path: str, expected: FileRecord) -> str:
        size = self._size(path)
        if size is None:
            return f"{path}: missing"
        if size != expected.size:
            return f"{path}: size {size} where the record says {expected.size}"
        checksum, left = Checksum(), expected.size - SEAL_BYTES * expected.sealed
        with self.fs.open_input(path) as file:
            while left and (block := file.read(min(left, _BLOCK_BYTES))):
                checksum.update(block)
                left -= len(block)
            got = checksum.differing(expected, file.read(SEAL_BYTES))
        return f"{path}: checksum {got} where the record says {expected.crc32c}" if got else ""


def list_captures(fs: Filesystem) -> list[str]:
    """The captures in a place of runs, sorted: every folder that holds a capture's record."""
    return [name for name in fs.children("") if fs.exists(Layout(name).capture_record)]


def open_manifest(fs: Filesystem, capture: str) -> Manifest:
    """The manifest of a capture that is there; UnknownName with the nearest otherwise, ForeignStore if not ours."""
    known = list_captures(fs)
    if capture not in known:
        raise UnknownName.among("capture", capture, known, where=fs.where)
    manifest = Manifest(fs, Layout(capture))
    manifest.read_capture()
    return manifest


def _as_json(file: FileRecord) -> dict[str, Any]:
    return {"size": file.size, "crc32c": file.crc32c, **({"sealed": True} if file.sealed else {})}


def _foreign(expected: str, got: str, where: str) -> ForeignStore:
    remedy = f"If another program wrote it, use another folder of runs; if it is damaged, delete this file and {AGAIN}."
    return ForeignStore(expected, got=got, where=where, remedy=remedy)
