"""Tables: what goes in comes out, the same bytes for the same rows, and a wrong column is named."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from storage.errors import DamagedPart, MissingPart, StorageFull
from storage.filesystem import Filesystem
from storage.manifest import FileRecord
from storage.tables import (
    BIG,
    DOUBLE,
    FLAG,
    INT,
    REAL,
    ROW_GROUP,
    TEXT,
    PartWriter,
    TableSpec,
    read_table,
    table,
    write_table,
)

SPEC = table("rows", {"doc": INT, "reduce": TEXT}, n=BIG, x=REAL, y=DOUBLE, ok=FLAG)
CONSTANTS = {"capture": "cap", "stage_key": "k" * 64}
COLUMNS: dict[str, Any] = {
    "doc": [1, 2],
    "reduce": ["mean", "sum"],
    "n": 7,
    "x": [0.5, float("nan")],
    "y": 1.0,
    "ok": True,
}


def written(fs: Filesystem, *calls: dict[str, Any], path: str = "t/part.parquet", spec: TableSpec = SPEC) -> pa.Table:
    with PartWriter(fs, path, spec, CONSTANTS) as writer:
        for columns in calls:
            writer.add(columns)
        record, rows = writer.close()
    data = fs.read_bytes(path)
    assert record == FileRecord.of(data)
    found = read_table(fs, path)
    assert found.num_rows == rows
    assert found.schema.equals(spec.schema)
    return found


def test_rows_come_back_in_order_with_the_constants(fs: Filesystem) -> None:
    found = written(fs, COLUMNS, {**COLUMNS, "doc": [3, 4]})
    assert found.column_names == SPEC.schema.names
    assert found["doc"].to_pylist() == [1, 2, 3, 4]
    assert found["reduce"].to_pylist() == ["mean", "sum"] * 2
    assert set(found["stage_key"].to_pylist()) == {"k" * 64}
    assert found["x"].to_pylist()[0] == 0.5
    assert np.isnan(found["x"].to_pylist()[1])
    assert found["ok"].to_pylist() == [True] * 4


@pytest.mark.parametrize(
    "doc",
    [
        np.array([1, 2], dtype=np.int64),
        np.array([1, 2], dtype=np.uint8),
        np.array([1.0, 2.0]),
        np.arange(1, 5)[::2] - np.array([0, 1]),
        torch.tensor([1, 2]),
        torch.tensor([1, 2], requires_grad=False).to(torch.int16),
        pa.array([1, 2]),
        pa.chunked_array([[1], [2]]),
        (1, 2),
    ],
    ids=str,
)
def test_any_array_of_the_right_values_serves(fs: Filesystem, doc: Any) -> None:
    assert written(fs, {**COLUMNS, "doc": doc})["doc"].to_pylist() == [1, 2]


@pytest.mark.parametrize(
    "reduce",
    ["mean", np.array(["mean", "mean"]), pa.array(["mean", "mean"]).dictionary_encode(), np.str_("mean")],
    ids=str,
)
def test_text_may_be_one_value_an_array_or_a_dictionary(fs: Filesystem, reduce: Any) -> None:
    assert written(fs, {**COLUMNS, "reduce": reduce})["reduce"].to_pylist() == ["mean", "mean"]


def test_nothing_known_is_null(fs: Filesystem) -> None:
    found = written(fs, {**COLUMNS, "reduce": None, "n": None, "x": [1.0, None]})
    assert found["reduce"].null_count == found["n"].null_count == 2
    assert found["x"].to_pylist() == [1.0, None]


def test_single_values_alone_make_one_row(fs: Filesystem) -> None:
    single = {
        "doc": np.int64(3),
        "reduce": "mean",
        "n": torch.tensor(4),
        "x": np.float32(0.1),
        "y": 0.1,
        "ok": np.bool_(False),
    }
    found = written(fs, single)
    assert found.to_pylist()[0] == {**CONSTANTS, **single, "n": 4, "x": pytest.approx(0.1)}


def test_a_call_is_a_row_group_split_above_the_limit(fs: Filesystem) -> None:
    n = ROW_GROUP + 5
    written(
        fs,
        COLUMNS,
        {**COLUMNS, "doc": np.zeros(n), "reduce": "mean", "x": 0.0},
        {**COLUMNS, "doc": [], "reduce": [], "x": []},
    )
    file = pq.ParquetFile(fs.absolute("t/part.parquet"))
    assert [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] == [2, ROW_GROUP, 5]
    column = file.metadata.row_group(1).column(0)
    assert column.compression == "ZSTD"
    assert "RLE_DICTIONARY" in column.encodings
    file.close()


def test_no_rows_make_a_table_that_opens(fs: Filesystem) -> None:
    assert written(fs).num_rows == 0


def test_the_same_rows_make_the_same_bytes(fs: Filesystem) -> None:
    n = 5000
    columns = {
        "doc": np.arange(n),
        "reduce": ["mean", "sum"] * (n // 2),
        "n": 1,
        "x": np.linspace(0, 1, n),
        "y": 0.0,
        "ok": True,
    }
    for path in ("a", "b"):
        written(fs, columns, COLUMNS, path=path)
    assert fs.read_bytes("a") == fs.read_bytes("b")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": ...}, "table rows needs column x"),
        ({"z": 1, "w": 2}, "table rows does not take column w, z here"),
        ({"capture": "other"}, "table rows does not take column capture here"),
        ({"x": [1.0, 2.0, 3.0]}, "table rows needs columns of one length, got .*'x': 3"),
        ({"doc": [1, 2**40]}, "column doc of table rows needs int32: Integer value 1099511627776 not in range"),
        ({"doc": [1.0, 2.5]}, "column doc of table rows needs int32: .*2.5"),
        ({"doc": ["1", "2"]}, "column doc of table rows needs int32: got string"),
        ({"reduce": [1, 2]}, r"column reduce of table rows needs dictionary<values=string.*got int64"),
        ({"x": [1.0, 1e300]}, "column x of table rows needs float: 1 values are beyond its range"),
        ({"x": np.zeros((2, 2))}, r"column x of table rows needs float: expected one axis, got shape \(2, 2\)"),
        ({"n": "many"}, "column n of table rows needs int64"),
        ({"x": [{}, {}]}, "column x of table rows needs float"),
    ],
    ids=str,
)
def test_a_wrong_column_is_named(fs: Filesystem, change: dict[str, Any], message: str) -> None:
    columns = {name: value for name, value in {**COLUMNS, **change}.items() if value is not ...}
    with PartWriter(fs, "t", SPEC, CONSTANTS) as writer:
        with pytest.raises(ValueError, match=message):
            writer.add(columns)
        writer.add(COLUMNS)
        assert writer.close()[1] == 2


def test_a_constant_must_be_a_column(fs: Filesystem) -> None:
    with pytest.raises(ValueError, match="table rows has no column colour to hold constant"):
        PartWriter(fs, "t", SPEC, {"colour": "red"})


def test_infinity_and_nan_are_kept(fs: Filesystem) -> None:
    assert written(fs, {**COLUMNS, "x": [np.inf, -np.inf]})["x"].to_pylist() == [np.inf, -np.inf]


def test_a_small_table_is_replaced_whole(fs: Filesystem) -> None:
    spec = TableSpec("windows", (), pa.schema([("doc", INT), ("token_ids", pa.list_(INT)), ("source", TEXT)]))
    for n in (3, 2, 0):
        rows = pa.table({"source": ["s"] * n, "doc": list(range(n)), "token_ids": [[1, 2]] * n}, schema=None)
        if n == 0:
            rows = spec.schema.empty_table()
        record = write_table(fs, "m/windows.parquet", spec, rows)
        assert record == FileRecord.of(fs.read_bytes("m/windows.parquet"))
        assert read_table(fs, "m/windows.parquet").to_pylist() == rows.select(spec.schema.names).to_pylist()
    assert read_table(fs, "m/windows.parquet", ["doc"]).column_names == ["doc"]
    with pytest.raises(ValueError, match="table windows differs from its schema in column source"):
        write_table(fs, "m/windows.parquet", spec, pa.table({"doc": [1], "token_ids": [[1]]}))


def test_a_missing_or_damaged_table_is_named(fs: Filesystem) -> None:
    with pytest.raises(MissingPart, match=r"t/part\.parquet"):
        read_table(fs, "t/part.parquet")
    written(fs, COLUMNS)
    data = fs.read_bytes("t/part.parquet")
    for damaged in (data[:-10], b"", b"not parquet at all"):
        fs.write_bytes("t/part.parquet", damaged)
        with pytest.raises(DamagedPart, match=r"a whole Parquet file, got .*t/part\.parquet"):
            read_table(fs, "t/part.parquet")


def test_a_full_disk_ends_the_writer_and_the_next_try_is_whole(small_disk: Callable[[str], Filesystem]) -> None:
    fs = small_disk("size=256k")
    generator = np.random.default_rng(0)
    big = {**COLUMNS, "doc": np.arange(100_000), "reduce": "mean", "x": 0.0, "y": generator.random(100_000)}

    def write() -> None:
        with PartWriter(fs, "t", SPEC, CONSTANTS) as writer:
            writer.add(big)
            writer.close()

    with pytest.raises(StorageFull, match=r"room to write .*/t, got [\d,]+ bytes free"):
        write()
    gc.collect()  # nothing that the writer left behind complains at its own end
    small_disk("size=8m")
    write()
    assert read_table(fs, "t").num_rows == 100_000


def test_an_error_inside_closes_the_file(fs: Filesystem) -> None:
    with pytest.raises(KeyError), PartWriter(fs, "t", SPEC, CONSTANTS) as writer:
        writer.add(COLUMNS)
        raise KeyError("a stage's own fault")
    with pytest.raises(DamagedPart):
        read_table(fs, "t")
    Path(fs.absolute("t")).unlink()
