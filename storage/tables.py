"""Parquet tables: the one module that writes and reads them, and how a table is declared."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

INT, BIG, REAL, DOUBLE, TEXT, FLAG = pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.bool_()


@dataclass(frozen=True)
class TableSpec:
    """One table: its name, its grain (the key columns after `capture`), and its pyarrow schema.

    Every table begins with `capture` and `stage_key`, so a view can tell the current rows from the history.
    """

    name: str
    grain: tuple[str, ...]
    schema: pa.Schema


def table(name: str, grain: dict[str, pa.DataType], /, **columns: pa.DataType) -> TableSpec:
    """Declare a table from its key columns and its other columns, in the order of `tables.md`."""
    fields = {"capture": TEXT, "stage_key": TEXT, **grain, **columns}
    return TableSpec(name, ("capture", *grain), pa.schema([pa.field(n, t) for n, t in fields.items()]))
