"""The stage `contributions`: every table against plain loops, from a store in memory."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tasks.kernels.factors import TOKEN_GROUPS
from tasks.stages.contract import StageContext
from tasks.stages.registry import stage
from tests.oracles.contributions import Oracle
from tests.tasks.stages.made_store import MemoryStore, Run, run_stage

HEADS = range(4)


@pytest.fixture(scope="module", params=["softmax", "learned sink", "encoder"])
def store(request: pytest.FixtureRequest) -> MemoryStore:
    return MemoryStore(learned_sink=request.param == "learned sink", causal=request.param != "encoder")


@pytest.fixture(scope="module")
def run(store: MemoryStore) -> Run:
    return run_stage(store, [store.shard(0, 1, 2)])


@pytest.fixture(scope="module")
def oracles(store: MemoryStore) -> dict[tuple[int, int], Oracle]:
    """By (layer, document)."""
    return {(l, d): made.oracle() for l, layer in enumerate(store.layers) for d, made in layer.items()}


Oracles = dict[tuple[int, int], Oracle]


def near(value: Any) -> Any:
    return pytest.approx(value, rel=2e-3, abs=2e-5, nan_ok=True)


def test_every_table_is_filled(run: Run) -> None:
    assert set(run.rows.tables) == {table.name for table in stage("contributions").tables}


def test_token_scores(run: Run, oracles: Oracles) -> None:
    rows = run.rows.rows("token_scores", "doc", "layer", "head", "position", "reduce")
    expected = {
        (d, l, h, j, r)
        for (l, d), o in oracles.items()
        for h in HEADS
        for j in range(o.T - 1 if o.causal else o.T)
        for r in ("mean", "sum")
    }
    assert set(rows) == expected
    for (d, l, h, j, reduce), row in rows.items():
        n, sums = oracles[l, d].token_scores(h, j)
        assert row["n_queries"] == n
        for name, value in sums.items():
            assert row[name] == near(value / (n if reduce == "mean" else 1)), name


def test_contribution_rows(run: Run, oracles: Oracles) -> None:
    rows = run.rows.rows("contribution_rows", "doc", "layer", "head", "query")
    assert len(rows) == sum(o.T * o.H for o in oracles.values())
    for (d, l, h, i), row in rows.items():
        oracle = oracles[l, d]
        expected = oracle.row(h, i)
        assert row["sum_cw_intra"] == near(expected["cw_intra"]) == pytest.approx(1, abs=1e-5)
        assert row["sum_cw_inter"] == near(expected["cw_inter"])
        assert row["negative_share"] == near(expected["negative_share"])
        assert row["sum_alpha"] == near(oracle.attention[h, i].sum())
        assert row["output_norm"] == near(np.linalg.norm(oracle.output[h, i]))
        assert row["layer_output_norm"] == near(np.linalg.norm(oracle.output[:, i].sum(0)))


def test_contribution_edges(run: Run, oracles: Oracles) -> None:
    rows = run.rows.rows("contribution_edges", "doc", "layer", "head", "query", "rank")
    seen = 0
    for (l, d), oracle in oracles.items():
        for h in HEADS:
            for i in range(oracle.T):
                for rank, (key, entry) in enumerate(oracle.edges(h, i, 4), start=1):
                    row = rows[d, l, h, i, rank]
                    assert row["key"] == key
                    assert row["alpha"] == near(entry["raw"])
                    for name in ("relative_norm", "cosine", "cw_intra", "cw_inter"):
                        assert row[name] == near(entry[name]), name
                    seen += 1
    assert seen == len(rows)


def test_sink_geometry(run: Run, oracles: Oracles) -> None:
    rows = run.rows.rows("sink_geometry", "doc", "layer", "head", "query")
    expected = {
        (d, l, h, i) for (l, d), o in oracles.items() for h in HEADS for i in range(1, o.T) if 0 in o.visible(i)
    }
    assert set(rows) == expected
    for (d, l, h, i), row in rows.items():
        geometry = oracles[l, d].sink(h, i)
        for name, value in geometry.items():
            assert row[name] == near(value), name
        a_star = geometry["a_star"]
        assert row["interior"] is (None if math.isnan(a_star) else bool(0 < a_star < 1))


def test_semantic_drift(run: Run, oracles: Oracles) -> None:
    rows = run.rows.rows("semantic_drift", "doc", "layer", "head")
    assert len(rows) == 2 * 3 * 4
    for (d, l, h), row in rows.items():
        norm, cosine = oracles[l, d].drift(h)
        assert row["n"] == oracles[l, d].T - 1
        assert (row["drift_norm"], row["cosine_drift_sink"]) == (near(norm), near(cosine))


def test_semantic_cone(run: Run, oracles: Oracles) -> None:
    """The mean over documents that have a pair of rows to compare."""
    rows = run.rows.rows("semantic_cone", "layer", "head", "row_group", "sink")
    assert len(rows) == 2 * 4 * 4
    for (l, h, group, sink), row in rows.items():
        found = [oracles[l, d].cone(h)[group, sink] for d in range(3)]
        found = [(n, c) for n, c in found if not math.isnan(c)]
        assert row["n"] == sum(n for n, _ in found)
        assert row["mean_pairwise_cosine"] == near(np.mean([c for _, c in found]) if found else math.nan)


def test_contribution_factors(run: Run, oracles: Oracles) -> None:
    rows = run.rows.rows("contribution_factors", "layer", "head", "token_group")
    assert set(rows) == {(l, h, g) for l in range(2) for h in HEADS for g in TOKEN_GROUPS}
    for (l, h, group), row in rows.items():
        samples = np.concatenate([oracles[l, d].factor_entries(h, group)[0] for d in range(3)])
        logs = samples[:, :3]
        covariance = np.cov(np.c_[logs, logs.sum(1)].T)
        assert row["n"] == len(samples)
        shares = [row[f"share_{f}"] for f in ("alpha", "norm", "cosine")]
        assert shares == near(list(covariance[:3, 3] / covariance[3, 3]))
        means = [row[f"mean_{name}"] for name in ("alpha", "relative_norm", "cosine", "cw")]
        assert means == near(list(samples.mean(0)[3:]))


def sink_pairs(oracles: Oracles, layer: int, head: int) -> tuple[np.ndarray, np.ndarray]:
    """(a, ‖o‖) of every query that sees key 0."""
    entries = [
        o.sink(head, i) for (l, _), o in oracles.items() for i in range(1, o.T) if l == layer and 0 in o.visible(i)
    ]
    return np.array([e["sink_rate"] for e in entries]), np.array([e["output_norm"] for e in entries])


def test_sink_curve(run: Run, oracles: Oracles) -> None:
    rows = run.rows.rows("sink_curve", "layer", "head", "bin")
    assert len(rows) == 2 * 4 * 20
    for (l, h, b), row in rows.items():
        a, y = sink_pairs(oracles, l, h)
        inside = np.minimum(np.floor(a * 20), 19) == b
        assert row["n"] == inside.sum()
        if row["n"]:
            assert (row["sink_rate"], row["output_norm_mean"]) == (near(a[inside].mean()), near(y[inside].mean()))
        assert row["output_norm_sd"] == near(y[inside].std(ddof=1) if row["n"] > 1 else math.nan)


def test_sink_fit(run: Run, oracles: Oracles) -> None:
    rows = run.rows.rows("sink_fit", "layer", "head")
    assert len(rows) == 2 * 4
    for (l, h), row in rows.items():
        a, y = sink_pairs(oracles, l, h)
        beta2, beta1, _ = np.polyfit(a, y, 2)
        assert row["n"] == len(a)
        assert row["curvature"] == pytest.approx(2 * beta2, rel=1e-2)
        assert row["a_min"] == (
            pytest.approx(-beta1 / (2 * beta2), rel=1e-2, nan_ok=True) if beta2 > 0 else near(math.nan)
        )
        assert row["curvature_lo"] <= row["curvature_hi"]


def test_documents_in_shards_equal_documents_together(store: MemoryStore, run: Run) -> None:
    apart = run_stage(store, [store.shard(0), store.shard(1, 2)])
    assert apart.quality == run.quality
    for table in ("contribution_factors", "sink_curve", "sink_fit", "semantic_cone"):
        together, combined = (r.rows.tables[table].to_pydict() for r in (run, apart))
        for name, values in together.items():
            assert combined[name] == (
                values if isinstance(values[0], str) else pytest.approx(values, rel=1e-5, nan_ok=True)
            )


def test_the_same_run_gives_the_same_rows(store: MemoryStore, run: Run) -> None:
    again = run_stage(store, [store.shard(0, 1, 2)])
    for name, table in run.rows.tables.items():
        for column, other in zip(table.columns, again.rows.tables[name].columns, strict=True):
            assert column.combine_chunks().buffers()[-1] == other.combine_chunks().buffers()[-1]
    for name, array in run.partial.items():
        assert array.tobytes() == again.partial[name].tobytes()


def test_the_seed_moves_the_interval_and_nothing_else(store: MemoryStore, run: Run) -> None:
    other = run_stage(store, [store.shard(0, 1, 2)], context=StageContext("key", seed=4))
    before, after = (r.rows.tables["sink_fit"].to_pydict() for r in (run, other))
    assert before["curvature"] == after["curvature"]
    assert before["curvature_lo"] != after["curvature_lo"]


def test_a_layer_is_one_row_group_of_each_table(run: Run) -> None:
    for table in ("token_scores", "contribution_rows", "contribution_edges", "sink_geometry", "semantic_drift"):
        assert run.rows.row_groups.count(table) == 2
        keys = run.rows.tables[table].select(["layer", "doc", "head"]).to_pylist()
        assert keys == sorted(keys, key=lambda row: (row["layer"], row["doc"], row["head"]))


def test_progress_counts_documents_and_layers(store: MemoryStore) -> None:
    steps: list[int] = []
    run_stage(store, [store.shard(0, 1), store.shard(2)], context=StageContext("key", 0, steps.append))
    assert sum(steps) == 2 * 3


def test_what_is_undefined_is_counted() -> None:
    """A silent row, a query that gives all to the sink, attention that underflowed: NaN, each counted."""
    store = MemoryStore()
    document = store.layers[0][0]
    document.attention[1, 6] = 0
    document.attention[2, 5] = 0
    document.attention[2, 5, 0] = 1
    run = run_stage(store, [store.shard(0, 1, 2)])
    undefined = {
        name: sum(row[column] is not None and math.isnan(row[column]) for row in run.rows.tables[table].to_pylist())
        for name, table, column in (
            ("nan_cw_intra_rows", "contribution_rows", "sum_cw_intra"),
            ("nan_cw_inter_rows", "contribution_rows", "sum_cw_inter"),
            ("nan_edge_cosines", "contribution_edges", "cosine"),
            ("nan_sink_tails", "sink_geometry", "tail_norm"),
            ("nan_a_star_rows", "sink_geometry", "a_star"),
            ("nan_drift_cosines", "semantic_drift", "cosine_drift_sink"),
            ("nan_factor_shares", "contribution_factors", "share_alpha"),
            ("nan_sink_fits", "sink_fit", "curvature"),
            ("nan_cone_cosines", "semantic_cone", "mean_pairwise_cosine"),
        )
    }
    assert {name: run.quality[name] for name in undefined} == undefined
    assert undefined["nan_cw_intra_rows"] == 1 and undefined["nan_sink_tails"] == 2
    assert run.quality["nan_token_scores"] == 7
    assert run.quality["factor_entries_left_out"] == 7 + 5  # the silent row; all but the sink's entry of the other
    interior = run.rows.rows("sink_geometry", "doc", "layer", "head", "query")[0, 0, 1, 6]["interior"]
    assert interior is None
