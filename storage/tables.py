"""Parquet tables: the one module that writes and reads them, and how a table is declared."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from storage.columns import as_column, row_count
from storage.errors import VERIFY, DamagedPart
from storage.filesystem import Filesystem, translate_os_errors
from storage.manifest import Checksum, FileRecord

INT, BIG, REAL, DOUBLE, TEXT, FLAG = pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.bool_()

ROW_GROUP = 400_000
"""Most rows of a row group: what a reader that skips by statistics decodes at a time."""


@dataclass(frozen=True)
class Column:
    """A column of which more is declared than its type."""

    type: pa.DataType
    words: tuple[str, ...] = ()
    """The values that a text column may hold; none where it may hold any."""
    layer_set: bool = False
    """Whether it may also hold a set of layers: all, or numbers such as 10-19."""
    boundary: bool = False
    """Whether it counts boundaries of the residual stream: layers without attention too, and the end of the last."""


def one_of(*words: str, layer_set: bool = False) -> Column:
    """A text column that holds one of these words, or a set of layers."""
    return Column(TEXT, words, layer_set)


LAYER_SET = one_of(layer_set=True)
BOUNDARY = Column(INT, boundary=True)
Declared = Any
"""How a column is declared: by its pyarrow type, or as a `Column`."""


@dataclass(frozen=True)
class TableSpec:
    """One table: its name, its grain (the key columns after `capture`), and its pyarrow schema.

    Every table begins with `capture` and `stage_key`, so a view can tell the current rows from the history.
    """

    name: str
    grain: tuple[str, ...]
    schema: pa.Schema
    columns: Mapping[str, Column] = field(default_factory=dict, compare=False)
    """The columns of which more is declared than their type."""


def table(name: str, grain: Mapping[str, Declared], /, **columns: Declared) -> TableSpec:
    """Declare a table from its key columns and its other columns, in the order of `tables.md`."""
    declared = {n: c for n, c in {**grain, **columns}.items() if isinstance(c, Column)}
    types = {n: c.type if isinstance(c, Column) else c for n, c in {**grain, **columns}.items()}
    schema = pa.schema([pa.field(n, t) for n, t in {"capture": TEXT, "stage_key": TEXT, **types}.items()])
    return TableSpec(name, ("capture", *grain), schema, declared)


class PartWriter:
    """Writes one Parquet file of a table, a row group per call, with the same bytes for the same rows.

    `constants` fills columns that are the same in every row (`capture`, `stage_key`). The file is not in place
    atomically: write it into staging. Used as a context manager it closes its file when something fails.
    """

    def __init__(self, fs: Filesystem, path: str, spec: TableSpec, constants: Mapping[str, Any]) -> None:
        unknown = set(constants) - set(spec.schema.names)
        if unknown:
            raise ValueError(f"table {spec.name} has no column {_names(unknown)} to hold constant")
        self.path, self.spec, self.rows = path, spec, 0
        self._constants, self._where = dict(constants), fs.absolute(path)
        self._output = _ChecksummedOutput(fs.open_output(path))
        self._schema = _stored_schema(spec)
        with translate_os_errors(self._where):
            self._writer = _parquet_writer(self._output, self._schema, spec)

    def add(self, columns: Mapping[str, Any]) -> None:
        """Append rows: each column an array (numpy, torch on the CPU, Arrow, list) or one value for all rows.

        Raises ValueError naming the column: missing, extra, of another length, or not safely castable to the schema.
        """
        given = {**self._constants, **columns}
        wanted = set(self.spec.schema.names)
        if missing := wanted - set(given):
            raise ValueError(f"table {self.spec.name} needs column {_names(missing)}")
        if extra := (set(columns) - wanted) | (set(columns) & set(self._constants)):
            raise ValueError(f"table {self.spec.name} does not take column {_names(extra)} here")
        n_rows = row_count(self.spec.name, given)
        if n_rows == 0:
            return
        arrays = [as_column(self.spec.name, field, given[field.name], n_rows) for field in self._schema]
        with self._writing() as writer:
            writer.write_table(pa.Table.from_arrays(arrays, schema=self._schema), row_group_size=ROW_GROUP)
        self.rows += n_rows

    def close(self) -> tuple[FileRecord, int]:
        """End the file; returns its record and how many rows it holds."""
        with self._writing() as writer:
            writer.close()
            self._output.close()
        return self._output.checksum.record(), self.rows

    def abandon(self) -> None:
        """Let go of an unfinished file; what lies in staging is overwritten by the next try."""
        self._output.discard()
        self._writer.close()

    def __enter__(self) -> PartWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, _error: object, _trace: object) -> None:
        if kind is not None:
            self.abandon()

    @contextmanager
    def _writing(self) -> Iterator[pq.ParquetWriter]:
        with translate_os_errors(self._where):
            try:
                yield self._writer
            except BaseException:
                self.abandon()
                raise


def write_table(fs: Filesystem, path: str, spec: TableSpec, table: pa.Table) -> FileRecord:
    """Write a small table whole, replacing the file by rename. `table` has the columns of the schema, in any order."""
    if set(table.column_names) != set(spec.schema.names):
        difference = set(table.column_names) ^ set(spec.schema.names)
        raise ValueError(f"table {spec.name} differs from its schema in column {_names(difference)}")
    schema = _stored_schema(spec)
    columns = [
        as_column(spec.name, field, table.column(field.name).combine_chunks(), table.num_rows) for field in schema
    ]
    buffer = io.BytesIO()
    with _parquet_writer(buffer, schema, spec) as writer:
        if table.num_rows:
            writer.write_table(pa.Table.from_arrays(columns, schema=schema), row_group_size=ROW_GROUP)
    fs.write_bytes(path, buffer.getvalue())
    return FileRecord.of(buffer.getvalue())


def read_table(fs: Filesystem, path: str, columns: Sequence[str] | None = None) -> pa.Table:
    """A Parquet file's rows. Raises MissingPart, or DamagedPart if it is not Parquet or is cut short."""
    with fs.open_input(path) as file:
        try:
            return pq.ParquetFile(file).read(columns=list(columns) if columns is not None else None)
        except (pa.ArrowException, OSError) as error:
            raise DamagedPart(
                "a whole Parquet file",
                got=str(error),
                where=fs.absolute(path),
                remedy=VERIFY,
            ) from error


class _ChecksummedOutput(io.RawIOBase):
    """Passes bytes on to a file and keeps their size and checksum, so that nothing is read again to record it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.checksum, self._discarding = file, Checksum(), False

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if self._discarding:
            return len(view)
        self._file.write(view)
        self.checksum.update(view)
        return len(view)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()

    def discard(self) -> None:
        """After a failure: close, and let what the Parquet writer still sends at its own end go nowhere."""
        self._discarding = True
        with suppress(OSError):  # what could not be flushed before cannot be flushed now
            self._file.close()


def _stored_schema(spec: TableSpec) -> pa.Schema:
    """Text is handed to Parquet as dictionaries, so one value over 400,000 rows is hashed once, not each time."""
    return pa.schema([f.with_type(pa.dictionary(INT, TEXT)) if f.type == TEXT else f for f in spec.schema])


def _parquet_writer(output: Any, schema: pa.Schema, spec: TableSpec) -> pq.ParquetWriter:
    """zstd, dictionaries where values repeat (text and key columns); plain Parquet types, no Arrow schema inside.

    No statistics of float columns: Parquet's leave NaN out, and readers conclude from them that no value is NaN.
    """
    repeating = [f.name for f in spec.schema if f.type == TEXT or f.name in spec.grain]
    exact = [f.name for f in spec.schema if not pa.types.is_floating(f.type)]
    return pq.ParquetWriter(
        output, schema, compression="zstd", use_dictionary=repeating, store_schema=False, write_statistics=exact
    )


def _names(names: set[str]) -> str:
    return ", ".join(sorted(names))
