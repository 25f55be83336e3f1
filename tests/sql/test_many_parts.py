"""Thousands of parts: the views are made from the records, and all of the rows are there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from storage.filesystem import LocalFolder
from storage.layout import shard_part
from storage.warehouse import connect, run_sql, save_catalog, table_counts
from tasks.stages.registry import tables
from tests.sql.made_up_runs import MadeUp

PARTS = 5000


@pytest.fixture
def many(runs: LocalFolder) -> LocalFolder:
    """A capture whose one table has 5,000 parts of a row each: copies of one part under other names."""
    capture = MadeUp(runs, "many")
    capture.manifest.write_capture({"capture": "many", "key": capture.key("capture", 0)})
    row = {name: np.zeros(1, np.int32) for name in ("doc", "layer", "head", "n")}
    row |= {"drift_norm": np.ones(1), "cosine_drift_sink": np.full(1, np.nan)}
    first = shard_part(0)
    capture.part("contributions", 0, first, {"semantic_drift": row})
    capture.run("contributions", 0, shards=PARTS)
    key = capture.key("contributions", 0)
    paths = (
        capture.layout.part_record("contributions", key, first),
        capture.layout.table_part("semantic_drift", key, first),
    )
    for path in map(Path, map(runs.absolute, paths)):
        content = path.read_bytes()
        for index in range(1, PARTS):
            old, new = f"part-{first}", f"part-{shard_part(index)}"
            path.with_name(path.name.replace(old, new)).write_bytes(content.replace(old.encode(), new.encode()))
    return runs


def test_five_thousand_parts_are_all_there(many: LocalFolder) -> None:
    connection = connect(many, tables())
    counted = "select count(*) as n, count(cosine_drift_sink) as defined from semantic_drift"
    answer = run_sql(connection, f"{counted} where capture = 'many'").to_pylist()
    save_catalog(many, tables())
    assert answer == [{"n": PARTS, "defined": 0}]
    assert table_counts(many, tables())["semantic_drift"] == PARTS + 32
