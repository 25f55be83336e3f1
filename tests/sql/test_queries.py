"""The named queries: their parameters, and their figures against the same worked out in numpy."""

from __future__ import annotations

import re
from typing import Any

import duckdb
import numpy as np
import pytest

import sql
from storage.errors import UnknownName, UsageError
from storage.filesystem import LocalFolder
from storage.warehouse import connect, list_queries, query
from tasks.stages.registry import tables
from tests.sql.made_up import DOCS, HEADS, LAYERS, Columns, sink_columns, whole_columns
from tests.sql.made_up_choices import TASKS, choices_columns
from tests.sql.made_up_runs import MadeUp

NAMES = (
    "capture_cost",
    "choice_accuracy",
    "class_by_contribution",
    "class_stability",
    "convexity",
    "critical_heads",
    "displacement_confound",
    "dissociation",
    "effective_rank",
    "factor_shares",
    "faithfulness_curve",
    "head_allocation",
    "head_classes",
    "pair_accuracy",
    "probe_scores",
    "propagation_ratio",
    "pruning_curve",
    "published_vs_exact",
    "rank_by_class",
    "repair_recovery",
    "scale_by_layer",
    "score_hierarchy",
    "separability",
    "sink_effect",
    "sink_removal_effect",
    "sink_suppression",
)


def quick(name: str) -> dict[str, Any]:
    """Parameters that spare the time of a bootstrap."""
    return {p.name: 10 for p in sql.read("queries", name).parameters if p.name == "resamples"}


def rows(connection: duckdb.DuckDBPyConnection, name: str, **params: Any) -> list[dict[str, Any]]:
    return list(query(connection, name, params).to_pylist())


def test_the_queries_are_listed_with_grain_summary_and_parameters() -> None:
    listed = {info.name: info for info in list_queries()}
    assert tuple(listed) == NAMES
    for info in listed.values():
        assert info.grain.startswith("one row per (")
        assert len(info.summary) > 20
    shares = listed["factor_shares"].parameters
    assert [(p.name, p.type, p.default) for p in shares] == [
        ("capture", "varchar", None),
        ("per_layer", "boolean", False),
    ]
    assert "every capture" in shares[0].meaning


@pytest.mark.parametrize("kind", ["queries", "checks"])
def test_each_parameter_is_declared_and_used(kind: str) -> None:
    for name in sql.names(kind):
        file = sql.read(kind, name)
        used = set(re.findall(r"\$(\w+)", file.body))
        assert used == {p.name for p in file.parameters}, name


@pytest.mark.parametrize("name", NAMES)
def test_the_answer_has_the_grain_that_the_query_states(warehouse: duckdb.DuckDBPyConnection, name: str) -> None:
    keys = sql.read("queries", name).keys
    found = [tuple(row[key] for key in keys) for row in rows(warehouse, name, **quick(name))]
    assert found
    assert len(found) == len(set(found))


def test_sink_suppression(warehouse: duckdb.DuckDBPyConnection) -> None:
    found = rows(warehouse, "sink_suppression", layer=1)
    assert [(r["layer"], r["head"]) for r in found] == [(1, h) for h in range(HEADS)]
    pieces = [sink_columns(doc, 1) for doc in range(DOCS)]
    for row in found:
        mine: Columns = {n: np.concatenate([p[n][p["head"] == row["head"]] for p in pieces]) for n in pieces[0]}
        assert row["n_queries"] == len(mine["head"])
        for column in ("sink_rate", "cosine_sink_tail", "sink_norm", "tail_norm", "output_norm", "min_norm"):
            assert row[f"{column}_mean"] == pytest.approx(mine[column].mean(), rel=1e-6)
        assert row["interior_share"] == pytest.approx(mine["interior"].mean())
        assert row["a_star_median"] == pytest.approx(np.median(mine["a_star"]), rel=1e-6)
        agrees = mine["cosine_sink_tail"].mean() < 0 and mine["interior"].mean() > 0.5
        assert row["as_published"] == agrees
        assert (row["cosine_sink_tail_published"], row["a_star_published"]) == ("negative", "between 0 and 1")


def test_convexity_shares_do_not_depend_on_the_layer_chosen(warehouse: duckdb.DuckDBPyConnection) -> None:
    everything = rows(warehouse, "convexity")
    fit = whole_columns()["sink_fit"]
    assert [r["curvature"] for r in everything] == list(fit["curvature"])
    assert [r["convex"] for r in everything] == list(fit["curvature_lo"] > 0)
    assert {r["convex_share_capture"] for r in everything} == {(fit["curvature_lo"] > 0).mean()}
    second = rows(warehouse, "convexity", layer=1)
    assert second == [r for r in everything if r["layer"] == 1]
    assert {r["convex_share_layer"] for r in second} == {(fit["curvature_lo"] > 0)[fit["layer"] == 1].mean()}


def test_factor_shares_are_weighted_by_entries(warehouse: duckdb.DuckDBPyConnection) -> None:
    factors = whole_columns()["contribution_factors"]
    together = rows(warehouse, "factor_shares")
    assert [(r["layer"], r["token_group"]) for r in together] == [(None, g) for g in ("sink", "self", "tail")]
    for row in together:
        assert row["share_alpha"] + row["share_norm"] + row["share_cosine"] == pytest.approx(1, abs=1e-6)
        chosen = factors["token_group"] == row["token_group"]
        assert (row["n_heads"], row["n_entries"]) == (chosen.sum(), factors["n"][chosen].sum())
        assert row["share_norm"] == pytest.approx(factors["share_norm"][chosen].mean(), rel=1e-5)
        assert row["mean_cosine"] == pytest.approx(factors["mean_cosine"][chosen].mean(), rel=1e-5)
    layers = rows(warehouse, "factor_shares", per_layer="true")
    assert [r["layer"] for r in layers] == [layer for layer in range(LAYERS) for _ in range(3)]
    chosen = (factors["token_group"] == "sink") & (factors["layer"] == 1)
    assert layers[3]["share_alpha"] == pytest.approx(factors["share_alpha"][chosen].mean(), rel=1e-5)


def test_capture_cost(warehouse: duckdb.DuckDBPyConnection) -> None:
    (row,) = rows(warehouse, "capture_cost")
    assert (row["seconds"], row["bytes"], row["n_tokens"]) == (2.0, 4800, 24)
    assert (row["tokens_per_second"], row["bytes_per_token"]) == (12.0, 200.0)


def test_a_capture_can_be_chosen(runs: LocalFolder) -> None:
    MadeUp(runs, "beta").publish()
    connection = connect(runs, tables())
    for name in NAMES:
        assert {r["capture"] for r in rows(connection, name, **quick(name))} == {"alpha", "beta"}
        assert {r["capture"] for r in rows(connection, name, capture="beta", **quick(name))} == {"beta"}


@pytest.mark.parametrize(
    ("name", "params", "error", "message"),
    [
        ("convexitty", {}, UnknownName, "the name of a query, got 'convexitty'. Did you mean 'convexity'"),
        ("convexity", {"layr": 1}, UnknownName, "'layr', in query convexity. Did you mean 'layer'"),
        ("convexity", {"capture": "alpa"}, UnknownName, "'alpa'. Did you mean 'alpha'"),
        ("convexity", {"layer": "two"}, UsageError, "a whole number for layer, got 'two', in query convexity"),
        ("convexity", {"layer": True}, UsageError, "a whole number for layer"),
        ("factor_shares", {"per_layer": "maybe"}, UsageError, "true or false for per_layer"),
        ("pruning_curve", {"resamples": -1}, UsageError, "a whole number of at least 0 for resamples, got -1"),
        ("pruning_curve", {"resamples": "null"}, UsageError, "a value for resamples, got null"),
        ("critical_heads", {"every_head": None}, UsageError, "a value for every_head, got null"),
        (
            "dissociation",
            {"pair_noise": "shraed"},
            UnknownName,
            "'shraed', in query dissociation. Did you mean",
        ),
        ("rank_by_class", {"rule": "plurallity"}, UnknownName, "Did you mean 'plurality'"),
        ("repair_recovery", {"target": "norm"}, UnknownName, "'norm', in query repair_recovery"),
    ],
)
def test_wrong_names_and_values_are_said(
    warehouse: duckdb.DuckDBPyConnection, name: str, params: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        query(warehouse, name, params)


def test_the_words_of_a_parameter_are_those_that_its_meaning_names() -> None:
    words = {(q.name, p.name): p.words for q in list_queries() for p in q.parameters if p.words}
    assert words["dissociation", "pair_noise"] == ("shared", "independent", "published")
    assert words["rank_by_class", "rule"] == ("plurality", "majority", "final_query")
    assert {name for _, name in words} == {
        "pair_noise",
        "rule",
        "scope",
        "direction",
        "protocol",
        "target",
        "first_token",
    }


def test_text_stands_for_a_value_and_for_null(warehouse: duckdb.DuckDBPyConnection) -> None:
    assert rows(warehouse, "convexity", layer="1", capture="null") == rows(warehouse, "convexity", layer=1)


def test_choice_accuracy(warehouse: duckdb.DuckDBPyConnection) -> None:
    table = choices_columns()["choices"]
    found = rows(warehouse, "choice_accuracy", task="mmlu")
    assert len(found) == 1 + 2 * 2 * 2  # scores, directions, rates: draws are one condition
    assert found[0]["scope"] == "none"
    n_choices, n = TASKS["mmlu"]
    right: dict[str, np.ndarray] = {}
    for row in found:
        mine = (table["task"] == "mmlu") & (table["score"] == row["score"]) & (table["direction"] == row["direction"])
        mine &= np.isclose(table["rate"], row["rate"])
        for name in ("", "_normalised"):
            picked = (table[f"picked{name}"] == table["label"])[mine].reshape(n, -1).mean(1)
            right.setdefault(name, picked)  # the clean model's
            p, z = picked.mean(), 1.96
            middle, half = p + z**2 / (2 * n), z * np.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
            change = picked - right[name]
            spread = 1.96 * change.std(ddof=1) / np.sqrt(n)
            assert row[f"accuracy{name}"] == pytest.approx(p)
            assert row[f"accuracy{name}_lo"] == pytest.approx(max(0, (middle - half) / (1 + z**2 / n)), abs=1e-9)
            assert row[f"accuracy{name}_hi"] == pytest.approx(min(1, (middle + half) / (1 + z**2 / n)))
            assert row[f"accuracy{name}_change"] == pytest.approx(change.mean(), abs=1e-12)
            ends = change.mean() + spread * np.array([-1, 1]) if spread else (None, None)  # all alike: no interval
            for end, expected in zip(("lo", "hi"), ends, strict=True):
                assert row[f"accuracy{name}_change_{end}"] == (expected and pytest.approx(expected, abs=1e-9))
        assert (row["n_items"], row["chance"], row["majority_share"]) == (n, 1 / n_choices, 0.25)
        assert row["margin_mean"] == pytest.approx(table["margin"][mine].mean())
    assert len({row["accuracy"] for row in found}) > 3
    assert {row["task"] for row in rows(warehouse, "choice_accuracy")} == set(TASKS)
