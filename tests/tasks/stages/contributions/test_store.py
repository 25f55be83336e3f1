"""The stage `contributions` on a store written and published to disk, in each dtype that a store keeps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from storage.errors import DamagedPart
from storage.filesystem import open_runs
from storage.tensors import ActivationStore, StoreShape
from tests.storage.stores import CAPTURE, SHAPE, with_dtype, write_store
from tests.tasks.stages.made_store import Run, run_stage

SINKS = replace(SHAPE, dtypes={**SHAPE.dtypes, "sink_mass": "float32"})


def stored(folder: Path, dtype: str, shape: StoreShape = SHAPE) -> ActivationStore:
    fs = open_runs(str(folder), create=True)
    write_store(fs, shape=with_dtype(dtype, shape), shards=2)
    return ActivationStore.open(fs, CAPTURE)


def run_on(store: ActivationStore) -> Run:
    return run_stage(store, [store.shard(i) for i in store.shards])


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float16", 1e-3), ("bfloat16", 1e-3)])
def test_identities_hold_for_what_was_stored(tmp_path: Path, dtype: str, tolerance: float) -> None:
    run = run_on(stored(tmp_path, dtype))
    rows = run.rows.rows("contribution_rows", "doc", "layer", "head", "query")
    assert len(rows) == 2 * (5 + 3 + 2) * 2 * 4
    inter: dict[tuple[int, ...], float] = {}
    for (doc, layer, _, query), row in rows.items():
        assert row["sum_cw_intra"] == pytest.approx(1, abs=tolerance)
        inter[doc, layer, query] = inter.get((doc, layer, query), 0) + row["sum_cw_inter"]
    assert list(inter.values()) == pytest.approx([1] * len(inter), abs=tolerance)


def test_the_learned_sinks_mass_is_read_where_it_is_stored(tmp_path: Path) -> None:
    """It shortens the tail mean and leaves everything else of the row."""
    without, with_mass = (run_on(stored(tmp_path / str(i), "float32", s)) for i, s in enumerate((SHAPE, SINKS)))
    before, after = (r.rows.rows("sink_geometry", "doc", "layer", "head", "query") for r in (without, with_mass))
    assert before.keys() == after.keys()
    assert all(before[k]["tail_norm"] != after[k]["tail_norm"] for k in before if before[k]["tail_norm"] > 0)


def test_a_damaged_chunk_stops_the_stage_and_is_named(tmp_path: Path) -> None:
    store = stored(tmp_path, "float32")
    chunk = sorted(p for p in (tmp_path / CAPTURE).rglob("shards/00001/batch-00/attention/*") if p.name != "zarr.json")
    path = next(p for p in (chunk[0], *chunk[0].rglob("*")) if p.is_file())
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DamagedPart, match="attention of layer 0 in batch 0 of shard 1"):
        run_on(store)
