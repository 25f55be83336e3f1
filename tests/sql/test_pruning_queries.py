"""The queries of pruned and ablated heads, against the same worked out in numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import duckdb
import numpy as np
import pytest

from storage.filesystem import LocalFolder
from storage.warehouse import connect, query
from tasks.stages.heads.pruning_parameters import STRATEGIES
from tasks.stages.registry import tables
from tests.sql.made_up import DOCS, HEADS, LAYERS, TOKENS, Columns, capture_columns, whole_columns
from tests.sql.made_up_replays import CRITICAL, RETENTIONS, SEEDS, ablation_damage, pruning_damage
from tests.sql.made_up_runs import MadeUp
from tests.sql.made_up_selection import taxonomy_columns
from tests.sql.test_replay_queries import RESAMPLES, resampled

CLEAN = capture_columns("alpha", "float32")["documents"]["nll_sum"] / (TOKENS - 1)
"""Nats a token of each document; all have as many tokens."""
PLURALITY = {
    (int(layer), int(head)): word
    for layer, head, rule, word in zip(
        *(taxonomy_columns()["taxonomy"][name] for name in ("layer", "head", "rule", "class")), strict=True
    )
    if rule == "plurality"
}


def rows(connection: duckdb.DuckDBPyConnection, name: str, **params: Any) -> list[dict[str, Any]]:
    return list(query(connection, name, {"resamples": RESAMPLES, **params}).to_pylist())


def ends(values: np.ndarray) -> Any:
    return pytest.approx(list(np.quantile(values, [0.025, 0.975])), rel=1e-9, abs=1e-12)


def test_pruning_curve(warehouse: duckdb.DuckDBPyConnection) -> None:
    found = rows(warehouse, "pruning_curve")
    assert [(r["strategy"], round(r["retention"], 2)) for r in found] == [
        (s, r) for s in STRATEGIES for r in RETENTIONS
    ]
    draws = resampled(DOCS)
    for row in found:
        seeds = SEEDS if row["strategy"] == "random" else 1
        retention = round(row["retention"], 2)
        by_seed = np.array(
            [[pruning_damage(d, row["strategy"], retention, seed) for d in range(DOCS)] for seed in range(seeds)]
        )
        change = by_seed.mean(0)
        assert (row["n_seeds"], row["n_docs"], row["heads_kept"]) == (seeds, DOCS, {1: 8, 0.7: 6, 0.5: 4}[retention])
        assert row["nll_change"] == pytest.approx(change.mean(), abs=1e-12)
        assert [row["nll_change_lo"], row["nll_change_hi"]] == ends(change[draws].mean(1))
        ppl = np.exp((CLEAN + change)[draws].mean(1)) - np.exp(CLEAN[draws].mean(1))
        assert [row["perplexity_change_lo"], row["perplexity_change_hi"]] == ends(ppl)
        assert row["perplexity_change"] == pytest.approx(
            np.exp((CLEAN + change).mean()) - np.exp(CLEAN.mean()), abs=1e-12
        )
        assert row["perplexity_clean"] == pytest.approx(np.exp(CLEAN.mean()))
        sd = None if seeds == 1 else pytest.approx(by_seed.mean(1).std(ddof=1), abs=1e-12)
        assert row["nll_change_seeds_sd"] == sd
    assert rows(warehouse, "pruning_curve", strategy="entropy_low") == [
        r for r in found if r["strategy"] == "entropy_low"
    ]


def changes() -> dict[tuple[int, int], np.ndarray]:
    """Change by head, (documents,)."""
    heads = [(layer, head) for layer in range(LAYERS) for head in range(HEADS)]
    return {head: np.array([ablation_damage(doc, *head) for doc in range(DOCS)]) for head in heads}


def robust(heads: dict[tuple[int, int], np.ndarray], of: list[tuple[int, int]]) -> tuple[float, float]:
    """Median of these heads' mean changes, and the median absolute deviation."""
    means = np.array([heads[head].mean() for head in of])
    return float(np.median(means)), float(np.median(np.abs(means - np.median(means))))


def test_critical_heads(warehouse: duckdb.DuckDBPyConnection) -> None:
    by_head, draws = changes(), resampled(DOCS)
    found = rows(warehouse, "critical_heads", every_head=True)
    assert [(r["layer"], r["head"]) for r in found] == sorted(by_head, key=lambda h: -by_head[h].mean())
    for row in found:
        head = (row["layer"], row["head"])
        alike = [other for other, word in PLURALITY.items() if word == row["class"]]
        middle, deviation = robust(by_head, alike)
        assert row["class"] == PLURALITY[head] and row["n_in_class"] == len(alike)
        assert row["nll_change"] == pytest.approx(by_head[head].mean(), abs=1e-12)
        assert [row["nll_change_lo"], row["nll_change_hi"]] == ends(by_head[head][draws].mean(1))
        assert row["class_median"] == pytest.approx(middle, abs=1e-12)
        assert row["class_deviation"] == pytest.approx(deviation, abs=1e-12)
        z = 0.6745 * (by_head[head].mean() - middle) / deviation if deviation > 1e-12 else None
        assert row["robust_z"] == (None if z is None else pytest.approx(z, rel=1e-6))
        assert row["critical"] == (z is not None and z >= 3.5 and row["nll_change_lo"] > middle)
    critical = rows(warehouse, "critical_heads")
    assert [(r["layer"], r["head"]) for r in critical] == [CRITICAL]
    assert critical == [r for r in found if r["critical"]]
    assert rows(warehouse, "critical_heads", threshold=1e9) == []


def without(runs: LocalFolder, stage: str) -> duckdb.DuckDBPyConnection:
    """The same warehouse with no rows of a stage."""
    layout = MadeUp(runs, "alpha").layout
    runs.remove(f"{layout.stage_records_root}/{stage}")
    return connect(runs, tables())


def test_without_the_taxonomy_all_heads_are_one_group(runs: LocalFolder) -> None:
    """The head that was made to matter is the one that is found."""
    by_head = changes()
    middle, deviation = robust(by_head, list(by_head))
    (row,) = rows(without(runs, "taxonomy"), "critical_heads")
    assert (row["layer"], row["head"], row["class"]) == (*CRITICAL, None)
    assert row["robust_z"] == pytest.approx(0.6745 * (by_head[CRITICAL].mean() - middle) / deviation)


def test_an_interval_over_the_class_decides_too(broken: Callable[..., duckdb.DuckDBPyConnection]) -> None:
    """One document gains almost what the others lose: on average the head matters, but not surely."""

    def contrary(columns: Columns) -> None:
        where = (columns["layer"] == CRITICAL[0]) & (columns["head"] == CRITICAL[1]) & (columns["doc"] == 1)
        columns["nll_sum"] = np.where(where, columns["nll_clean_sum"] - 2.5 * (TOKENS - 1), columns["nll_sum"])

    connection = broken(head_ablation=contrary)
    found = {(r["layer"], r["head"]): r for r in rows(connection, "critical_heads", every_head=True)}
    row = found[CRITICAL]
    assert row["robust_z"] > 3.5 and row["nll_change_lo"] < row["class_median"]
    assert not row["critical"]


def test_class_by_contribution(warehouse: duckdb.DuckDBPyConnection, runs: LocalFolder) -> None:
    factors, by_head, draws = whole_columns()["contribution_factors"], changes(), resampled(DOCS)
    found = rows(warehouse, "class_by_contribution")
    assert {r["class"] for r in found} == set(PLURALITY.values())
    assert [r["token_group"] for r in found] == ["sink", "self", "tail"] * len(set(PLURALITY.values()))
    for row in found:
        heads = [head for head, word in PLURALITY.items() if word == row["class"]]
        mine = np.array([(layer, head) in heads for layer, head in zip(factors["layer"], factors["head"], strict=True)])
        mine &= factors["token_group"] == row["token_group"]
        assert (row["n_heads"], row["n_entries"]) == (len(heads), factors["n"][mine].sum())
        for name in ("share_alpha", "share_norm", "share_cosine", "mean_cw", "mean_relative_norm"):
            weighted = np.average(factors[name][mine], weights=factors["n"][mine])
            assert row[name] == pytest.approx(weighted, abs=1e-6)
        change = np.mean([by_head[head] for head in heads], 0)
        assert row["nll_change_mean"] == pytest.approx(change.mean(), abs=1e-12)
        assert [row["nll_change_mean_lo"], row["nll_change_mean_hi"]] == ends(change[draws].mean(1))
    majority = rows(warehouse, "class_by_contribution", rule="majority")
    assert sum(r["n_heads"] for r in majority) == 3 * LAYERS * HEADS
    bare = rows(without(runs, "head_ablation"), "class_by_contribution")
    assert [
        {**r, "nll_change_mean": None, "nll_change_mean_lo": None, "nll_change_mean_hi": None} for r in found
    ] == bare
