"""A description follows its files; every byte that is read for a digest is reported once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tasks.capture.describe import describe
from tasks.capture.settings import CaptureSettings
from tasks.models.sources import model_size, resolve
from tasks.progress import DIGEST, Progress, listening


class Watch:
    """What was announced, and the bytes that were told."""

    def __init__(self) -> None:
        self.announced: list[tuple[str, float, str]] = []
        self.told = 0.0

    @contextmanager
    def __call__(self, kind: str, total: float, unit: str) -> Iterator[None]:
        self.announced.append((kind, total, unit))
        with listening(self.hear):
            yield

    def hear(self, progress: Progress) -> None:
        self.told += progress.step if progress.kind == DIGEST else 0


@pytest.fixture
def settings(tmp_path: Path) -> CaptureSettings:
    (tmp_path / "text.txt").write_text("What is written once is read once. " * 100_000)  # some blocks
    return CaptureSettings("sample", (str(tmp_path / "text.txt"),), window=16, max_documents=3)


def test_every_byte_is_read_once_and_told(settings: CaptureSettings) -> None:
    watch = Watch()
    first = describe(settings, watch)
    total = Path(settings.corpus[0]).stat().st_size + model_size(resolve("sample"))
    assert watch.announced == [(DIGEST, total, "bytes")] and watch.told == total
    assert describe(settings).identity == first.identity


def test_what_changed_is_described_anew(settings: CaptureSettings) -> None:
    watch = Watch()
    first = describe(settings, watch)
    text = Path(settings.corpus[0])
    size, stat = text.stat().st_size, text.stat()
    text.write_text("Else" + text.read_text()[4:])
    os.utime(text, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert text.stat().st_size == size
    second = describe(settings, watch)
    assert second.identity.key != first.identity.key
    assert describe(settings.changed(window=24), watch).window == 24
    assert len(watch.announced) == 3
