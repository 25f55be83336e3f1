"""The life of one part of the work, for captures and stages alike, on one screen.

done already? → take the lock → done meanwhile? → compute into staging → checksums into the manifest → rename.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from storage.filesystem import Filesystem
from storage.layout import Layout
from storage.manifest import FileRecord, Manifest, PartRecord, placed


@dataclass
class PartResult:
    """What one part produced: files by final path, where each lies in staging, rows per table, quality counts."""

    files: dict[str, FileRecord] = field(default_factory=dict)
    moves: list[tuple[str, str]] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)
    quality: dict[str, int] = field(default_factory=dict)

    def add_file(self, staged: str, final: str, record: FileRecord) -> None:
        self.files[final] = record
        self.moves.append((staged, final))

    def add_folder(self, staged: str, final: str, records: dict[str, FileRecord]) -> None:
        """A whole folder, moved by one rename; `records` are relative to it."""
        self.files |= placed(records, final)
        self.moves.append((staged, final))


def publish_once(
    fs: Filesystem,
    layout: Layout,
    record_path: str,
    name: str,
    compute: Callable[[str], PartResult],
    on_wait: Callable[[], None] | None = None,
) -> bool:
    """Do one part of the work unless it is done; True if it was done here and now.

    `compute` gets an empty staging folder of its own and returns what it wrote there. Two processes with the same
    part meet at the lock: the second one waits, finds the part published, and leaves.
    """
    manifest = Manifest(fs, layout)
    if manifest.published(record_path) is not None:
        return False
    with fs.lock(layout.lock(name), on_wait=on_wait):
        if manifest.published(record_path) is not None:
            return False
        staging = layout.staging(name)
        fs.remove(staging)
        work = compute(staging)
        manifest.publish(record_path, PartRecord(work.files, work.rows, work.quality), work.moves)
        fs.remove(staging)
    return True
