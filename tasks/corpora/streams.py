"""The bytes of a corpus file as Arrow reads them, wherever they lie; how far the reading is, is told on the way."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from tasks.progress import Progress, emit

if TYPE_CHECKING:
    from tasks.corpora.files import CorpusFile

CORPUS = "corpus"
"""The kind of progress that reading a corpus tells, in bytes of its files as they lie: compressed, if they are."""

READ_AHEAD = 8 << 20
"""Bytes asked of object storage at once: few requests, and little that is read in vain."""


class Ranges(io.RawIOBase):
    """A file whose bytes are fetched by range; wrap it in a buffer, or every small read is a request.

    fetch: (first byte, byte after the last) → those bytes.
    """

    def __init__(self, size: int, fetch: Callable[[int, int], bytes]) -> None:
        self._size, self._fetch, self._at = size, fetch, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, origin + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        stop = min(self._at + len(buffer), self._size)
        if stop <= self._at:
            return 0
        data = self._fetch(self._at, stop)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


class _Told(io.RawIOBase):
    """Passes reads on, and tells their bytes: never more in all than the file has, whatever is read twice."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._left = file, size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._file.seekable()

    def tell(self) -> int:
        return self._file.tell()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.told(len(data))
        return data

    def told(self, size: int) -> None:
        step = min(size, self._left)
        if step:
            self._left -= step
            emit(Progress(CORPUS, step, "bytes"))

    def all_told(self) -> None:
        """What was passed over, such as the other columns of a Parquet file, is done too."""
        self.told(self._left)


@contextmanager
def opened(file: CorpusFile) -> Iterator[BinaryIO]:
    """The file's bytes as they lie. What is read is told as progress; at its end, all of the file."""
    size = file.size()
    with file.open() as source:
        told = _Told(source, size)
        yield cast("BinaryIO", told)
        told.all_told()
