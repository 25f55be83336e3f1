"""Answers as files: every row and column, put in place whole, refused with what to do."""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows import export
from flows.export import check_output, write_answer
from storage.errors import StoreError, UsageError
from tests.flows.command import Answer

Call = Callable[..., Answer]

ANSWER = pa.table(
    {"word": ["plain", 'a "b", c', None], "loss": [0.1, float("nan"), None], "layers": [[1, 2], [], None]}
)


def test_csv_quotes_and_leaves_null_out(tmp_path: Path) -> None:
    write_answer(ANSWER, str(tmp_path / "a.csv"))
    with (tmp_path / "a.csv").open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    assert header == ["word", "loss", "layers"]
    assert [row[0] for row in rows] == ["plain", 'a "b", c', ""]
    assert (float(rows[0][1]), rows[2][1]) == (0.1, "")


def test_json_is_one_array_without_nan(tmp_path: Path) -> None:
    write_answer(ANSWER, str(tmp_path / "a.json"))
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8")) == [
        {"word": "plain", "loss": 0.1, "layers": [1, 2]},
        {"word": 'a "b", c', "loss": None, "layers": []},
        {"word": None, "loss": None, "layers": None},
    ]
    write_answer(ANSWER.slice(0, 0), str(tmp_path / "none.json"))
    assert json.loads((tmp_path / "none.json").read_text()) == []


def test_parquet_keeps_types_and_nan(tmp_path: Path) -> None:
    write_answer(ANSWER, str(tmp_path / "A.PARQUET"))
    found = pq.read_table(tmp_path / "A.PARQUET")
    assert found.schema == ANSWER.schema
    assert found.drop(["loss"]).equals(ANSWER.drop(["loss"]))
    assert found["loss"][1].as_py() != found["loss"][1].as_py() and found["loss"][2].as_py() is None


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "a.json"
    place.write_text("before")

    def fail(_answer: Any, path: str) -> None:
        Path(path).write_text("half")
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setitem(export._WRITERS, ".json", fail)
        with pytest.raises(StoreError, match=f"got Input/output error, in {re.escape(str(place))}. Name another file"):
            write_answer(ANSWER, str(place))
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("a.json", "before")]
    write_answer(ANSWER, str(place))
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"] and len(json.loads(place.read_text())) == 3


@pytest.mark.parametrize("name", ["a", "a.txt", ".csv", "folder.csv", "file.csv/a.csv", "absent/a.csv"])
def test_refused_before_anything_is_asked(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "file.csv").touch()
    with pytest.raises(UsageError, match="--output"):
        check_output(str(tmp_path / name))


@pytest.mark.skipif(sys.platform != "linux", reason="a place that nobody may write is found on Linux alone")
@pytest.mark.parametrize("ending", [".csv", ".json", ".parquet"])
def test_an_unwritable_place_is_told(ending: str) -> None:
    with pytest.raises(StoreError, match=r"expected a place that can be written.*Name another file with --output"):
        write_answer(ANSWER, f"/proc/answer{ending}")


def test_the_command_writes_what_the_object_holds(call_here: Call, tmp_path: Path) -> None:
    statement = "select range as n from range(150)"
    answer = call_here("sql", statement, "--runs", ".", "--output", "rows.json", "--json")
    assert (answer.code, answer.content["output"]) == (0, str(tmp_path / "rows.json")), answer.err
    assert json.loads((tmp_path / "rows.json").read_text()) == answer.content["rows"]
    assert len(answer.content["rows"]) == 150 and "150 rows in rows.json" in answer.err
