"""The documents of a capture in their file: written as they are cut, read by the row group that holds them.

Neither writing nor reading holds more token ids in memory than a group's.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import accumulate, chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from storage.errors import VERIFY, DamagedPart
from storage.filesystem import Filesystem
from storage.layout import Layout
from storage.manifest import Checksum, FileRecord
from storage.tables import INT, TEXT, PartWriter, TableSpec
from tasks.corpora.windows import Document
from tasks.progress import Progress, emit

DOCUMENTS_WORK = "documents"
"""The kind of progress that laying out documents tells, and its unit."""

GROUP_TOKENS = 1 << 18
"""Tokens of a row group, or pixels, a document at least: what is in memory at once, 1 MiB."""

WINDOWS = TableSpec(
    "windows",
    ("doc",),
    pa.schema([("doc", INT), ("source", TEXT), ("start_token", INT), ("token_ids", pa.list_(pa.int32()))]),
)
"""The documents of a capture as they will be fed to the model; not a table of the warehouse."""

IMAGES = TableSpec(
    "windows",
    ("doc",),
    pa.schema([*WINDOWS.schema, ("height", INT), ("width", INT), ("pixels", pa.list_(pa.float32()))]),
)
"""The same of images: their pixels as the model takes them, channel by channel and row by row."""


def write_windows(fs: Filesystem, path: str, documents: Iterable[Document]) -> tuple[FileRecord, list[int]]:
    """Write documents as they come; the file's record, and the length of each in tokens."""
    lengths: list[int] = []
    groups = _groups(documents)
    first = next(groups, [])
    spec = WINDOWS if not first or first[0].pixels is None else IMAGES
    with PartWriter(fs, path, spec, {}) as writer:
        for group in chain([first] if first else [], groups):
            writer.add(_columns(group, len(lengths)))
            lengths += [len(d.token_ids) for d in group]
            emit(Progress(DOCUMENTS_WORK, len(group), DOCUMENTS_WORK))
        record, _ = writer.close()
    return record, lengths


def _groups(documents: Iterable[Document]) -> Iterator[list[Document]]:
    group: list[Document] = []
    values = 0
    for document in documents:
        group.append(document)
        values += document.inputs.size
        if values >= GROUP_TOKENS:
            yield group
            group, values = [], 0
    if group:
        yield group


def _columns(group: list[Document], first: int) -> dict[str, pa.Array]:
    offsets = pa.array([0, *accumulate(len(d.token_ids) for d in group)], pa.int32())
    ids = pa.concat_arrays([pa.array(d.token_ids) for d in group])
    columns = {
        "doc": pa.array(range(first, first + len(group)), INT),
        "source": pa.array([d.source for d in group], TEXT),
        "start_token": pa.array([d.start for d in group], INT),
        "token_ids": pa.ListArray.from_arrays(offsets, ids),
    }
    pixels = [d.pixels for d in group if d.pixels is not None]
    if not pixels:
        return columns
    ends = pa.array([0, *accumulate(p.size for p in pixels)], pa.int32())
    return {
        **columns,
        "height": pa.array([p.shape[1] for p in pixels], INT),
        "width": pa.array([p.shape[2] for p in pixels], INT),
        "pixels": pa.ListArray.from_arrays(ends, pa.concat_arrays([pa.array(p.ravel()) for p in pixels])),
    }


def record_of(fs: Filesystem, path: str) -> FileRecord:
    """Size and checksum of a file as it lies, a buffer of it in memory at a time. Raises MissingPart."""
    checksum = Checksum()
    with fs.open_input(path) as file:
        while data := file.read(1 << 20):
            checksum.update(data)
    return checksum.record()


class Windows:
    """The documents of a prepared capture, of which the group asked for last is in memory.

    `windows["token_ids"][doc]` is one document's value, an Arrow scalar.
    """

    def __init__(self, fs: Filesystem, path: str) -> None:
        self._fs, self._path, self._where = fs, path, fs.absolute(path)
        with fs.open_input(path) as file, _readable(self._where):
            whole = pq.ParquetFile(file)
            metadata, self._columns = whole.metadata, frozenset(whole.schema_arrow.names)
            sizes = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
        self._ends = list(accumulate(sizes))
        self._group = lru_cache(maxsize=2)(self._read)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, column: str) -> WindowColumn:
        return WindowColumn(self, column)

    def cell(self, column: str, doc: int) -> pa.Scalar:
        """One value of one document, 0 ≤ doc < len."""
        if not 0 <= doc < len(self):
            raise IndexError(f"document {doc} of {len(self)}")
        group = bisect_right(self._ends, doc)
        first = self._ends[group - 1] if group else 0
        return self._group(group)[column][doc - first]

    def inputs(self, doc: int) -> np.ndarray:
        """What the model is given of one document: token ids (T,) int32, or pixels (3, H, W) float32."""
        if "pixels" not in self._columns:
            return self.cell("token_ids", doc).values.to_numpy()
        height, width = (self.cell(name, doc).as_py() for name in ("height", "width"))
        return self.cell("pixels", doc).values.to_numpy().reshape(-1, height, width)

    def digests(self) -> Iterator[str]:
        """SHA-256 over the bytes of each document's inputs, in order; a row group is in memory at a time."""
        column, dtype = ("pixels", "<f4") if "pixels" in self._columns else ("token_ids", "<i4")
        for group in range(len(self._ends)):
            for inputs in self._read(group, [column])[column]:
                yield hashlib.sha256(inputs.values.to_numpy().astype(dtype).tobytes()).hexdigest()

    def groups(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """All rows, a row group at a time; all columns, or these."""
        for group in range(len(self._ends)):
            yield self._read(group, columns)

    def to_pydict(self) -> dict[str, list[Any]]:
        """All columns but pixels at once: for a small corpus."""
        names = WINDOWS.schema.names
        groups = list(self.groups(names))
        return {name: [v for group in groups for v in group[name].to_pylist()] for name in names}

    def _read(self, group: int, columns: Sequence[str] | None = None) -> pa.Table:
        with self._fs.open_input(self._path) as file, _readable(self._where):
            return pq.ParquetFile(file).read_row_group(group, columns=columns)


class WindowColumn:
    """One column of the documents."""

    def __init__(self, windows: Windows, column: str) -> None:
        self._windows, self._column = windows, column

    def __len__(self) -> int:
        return len(self._windows)

    def __getitem__(self, doc: int) -> pa.Scalar:
        return self._windows.cell(self._column, doc)


@contextmanager
def _readable(where: str) -> Iterator[None]:
    """Arrow's refusals, said as a damaged part."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise DamagedPart(
            "a whole Parquet file",
            got=str(error),
            where=where,
            remedy=VERIFY,
        ) from error


def read_windows(fs: Filesystem, layout: Layout) -> Windows:
    """The documents of a prepared capture: doc, source, start_token, token_ids. Raises MissingPart, DamagedPart."""
    return Windows(fs, layout.windows)
