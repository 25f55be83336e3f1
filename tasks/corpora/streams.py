"""The bytes of a corpus file as Arrow reads them, wherever they lie; progress is reported on the way."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, cast

from tasks.corpora.files import CorpusFile
from tasks.progress import Progress, emit

CORPUS = "corpus"
"""The kind of progress that reading a corpus tells, in bytes of its files as they lie: compressed, if they are."""


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
    """The file's bytes as they lie. What is read is reported as progress; at its end, all of the file."""
    size = file.size()
    with file.open() as source:
        told = _Told(source, size)
        yield cast("BinaryIO", told)
        told.all_told()
