"""One column of a table from whatever a stage holds: numpy, torch, Arrow, a list, or one value for every row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def row_count(table: str, columns: Mapping[str, Any]) -> int:
    """How many rows these columns make: the length that all arrays share, or 1 if all are single values."""
    lengths = {name: len(values) for name, values in columns.items() if not _is_single(values)}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"table {table} needs columns of one length, got {lengths}")
    return next(iter(lengths.values()), 1)


def as_column(table: str, field: pa.Field, values: Any, n_rows: int) -> pa.Array:
    """A column of the field's type, cast only where no value changes beyond float32's rounding; else ValueError."""
    try:
        if _is_single(values):
            return _repeated(field.type, values, n_rows)
        array = _arrow(values)
        if pa.types.is_dictionary(field.type):
            return _dictionary(field.type, array)
        return _cast(array, field.type)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise ValueError(f"column {field.name} of table {table} needs {field.type}: {error}") from error


def _is_single(values: Any) -> bool:
    """One value for every row: no sequence, or an array without axes (a numpy or torch number)."""
    if isinstance(values, str | bytes) or not hasattr(values, "__len__"):
        return True
    return getattr(values, "ndim", 1) == 0


def _arrow(values: Any) -> pa.Array:
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if isinstance(values, pa.Array):
        return values
    if hasattr(values, "detach"):  # torch, without importing it
        values = values.detach().cpu().numpy()
    if isinstance(values, np.ndarray) and values.ndim != 1:
        raise ValueError(f"expected one axis, got shape {values.shape}")
    return pa.array(values)


def _repeated(kind: pa.DataType, value: Any, n_rows: int) -> pa.Array:
    value = value.item() if hasattr(value, "item") else value
    if pa.types.is_dictionary(kind):
        if value is None:
            return pa.nulls(n_rows, kind)
        indices = pa.array(np.zeros(n_rows, dtype=np.int32))
        return pa.DictionaryArray.from_arrays(indices, pa.array([value], type=kind.value_type))
    return pa.repeat(_cast(pa.array([value]), kind)[0], n_rows)


def _dictionary(kind: pa.DictionaryType, array: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(array.type):
        return array.cast(kind)
    return _cast(array, kind.value_type).dictionary_encode()


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if not pa.types.is_null(array.type) and pa.types.is_string(array.type) != pa.types.is_string(kind):
        raise TypeError(f"got {array.type}")  # Arrow would parse text as numbers, and print numbers as text
    cast = array.cast(kind)
    if pa.types.is_float64(array.type) and pa.types.is_float32(kind):
        overflowed = pc.sum(pc.xor(pc.is_inf(cast), pc.is_inf(array))).as_py()
        if overflowed:
            raise ValueError(f"{overflowed} values are beyond its range")
    return cast
