"""Queries of minimal pairs and probes against the same worked out in plain Python."""

from __future__ import annotations

import math
from typing import Any

import duckdb
import numpy as np
import pytest

from storage.warehouse import query
from tests.sql.made_up import LAYERS
from tests.sql.made_up_pairs import ITEMS, TASKS, pair_columns
from tests.sql.made_up_probes import SCORES

Pair = tuple[str, int]


def rows(connection: duckdb.DuckDBPyConnection, name: str, **params: Any) -> list[dict[str, Any]]:
    return list(query(connection, name, params).to_pylist())


def right(arm: str, delta: float, noise: str) -> dict[Pair, float]:
    """Of each pair the share of draws in which it is right."""
    columns = pair_columns()["minimal_pairs"]
    found: dict[Pair, list[bool]] = {}
    for at in range(len(columns["task"])):
        if (columns["arm"][at], columns["delta"][at], columns["pair_noise"][at]) == (arm, delta, noise):
            found.setdefault((columns["task"][at], columns["item"][at]), []).append(bool(columns["correct"][at]))
    return {pair: sum(draws) / len(draws) for pair, draws in found.items()}


def mean_and_half(values: list[float]) -> tuple[float, float]:
    """The mean, and half of its 95 % interval."""
    mean = sum(values) / len(values)
    deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))
    return mean, 1.96 * deviation / math.sqrt(len(values))


@pytest.mark.parametrize("per_task", [False, True])
def test_accuracy_of_pairs_by_arm_beside_the_clean_model_and_the_other_arm(
    warehouse: duckdb.DuckDBPyConnection, per_task: bool
) -> None:
    found = rows(warehouse, "pair_accuracy", per_task=per_task)
    assert len(found) == (1 + 2 * 2 * 2) * (len(TASKS) if per_task else 1)
    assert {row["task"] for row in found} == (set(TASKS) if per_task else {None})
    clean = right("none", 0.0, "none")
    for row in found:
        pairs = [pair for pair in clean if row["task"] in (None, pair[0])]
        own = right(row["arm"], row["delta"], row["pair_noise"])
        assert row["n_pairs"] == len(pairs) == ITEMS * (1 if per_task else len(TASKS))
        assert row["accuracy"] == pytest.approx(np.mean([own[pair] for pair in pairs]))
        assert row["accuracy_clean"] == pytest.approx(np.mean([clean[pair] for pair in pairs]))
        if row["arm"] == "none":
            assert (row["accuracy_drop"], row["angle_less_magnitude"], row["accuracy_published"]) == (0, None, 0.895)
            continue
        drop, half = mean_and_half([clean[pair] - own[pair] for pair in pairs])
        assert row["accuracy_drop"] == pytest.approx(drop, abs=1e-9)
        assert row["accuracy_drop_hi"] == pytest.approx(drop + half)
        published = {5.0: {"magnitude": 0.691, "angle": 0.879}}
        assert row["accuracy_published"] == published.get(row["delta"], {}).get(row["arm"])
        if row["arm"] == "angle":
            assert row["angle_less_magnitude"] is None
            continue
        other = right("angle", row["delta"], row["pair_noise"])
        apart, half = mean_and_half([other[pair] - own[pair] for pair in pairs])
        assert row["angle_less_magnitude"] == pytest.approx(apart, abs=1e-9)
        if half:
            assert row["angle_less_magnitude_lo"] == pytest.approx(apart - half)
        assert row["unmoved_share"] == pytest.approx(1 / 60)


def test_one_task_is_told_apart(warehouse: duckdb.DuckDBPyConnection) -> None:
    want = [row for row in rows(warehouse, "pair_accuracy", per_task=True) if row["task"] == "det"]
    for row, other in zip(rows(warehouse, "pair_accuracy", task="det"), want, strict=True):
        assert row == pytest.approx(other)


@pytest.mark.parametrize("noise", ["shared", "independent"])
def test_the_dissociation_has_both_halves(warehouse: duckdb.DuckDBPyConnection, noise: str) -> None:
    """Where minimal pairs were perturbed as the corpus was; and no row of the loss is lost where they were not."""
    found = rows(warehouse, "dissociation", pair_noise=noise, resamples=0)
    both = [row for row in found if row["n_pairs"] is not None]
    (row,) = both
    named = {"protocol": "exact", "first_token": "include", "layers": "all", "delta_kind": "absolute", "delta": 1.0}
    assert {name: row[name] for name in named} == named
    assert len(found) > len(both)
    arms = {arm: float(np.mean(list(right(arm, 1.0, noise).values()))) for arm in ("magnitude", "angle")}
    assert row["n_pairs"] == ITEMS * len(TASKS)
    assert row["accuracy_clean"] == pytest.approx(np.mean(list(right("none", 0.0, "none").values())))
    assert (row["accuracy_magnitude"], row["accuracy_angle"]) == pytest.approx((arms["magnitude"], arms["angle"]))
    assert row["accuracy_difference"] == pytest.approx(arms["angle"] - arms["magnitude"])
    assert row["difference"] == pytest.approx(row["nll_change_angle"] - row["nll_change_magnitude"])
    assert row["accuracy_magnitude_published"] is None


def test_probes_stand_beside_baselines_and_published_figures(warehouse: duckdb.DuckDBPyConnection) -> None:
    found = rows(warehouse, "probe_scores")
    assert len(found) == (LAYERS + 1) * 2 * 3
    by_key = {(row["layer"], row["target"], row["feature"]): row for row in found}
    for (layer, target, feature), row in by_key.items():
        assert row["score"] == pytest.approx(SCORES[feature] + layer / 100)
        published = {"direction": 0.816, "magnitude": 0.297}.get(feature) if target == "pos" else None
        assert row["score_published"] == published
        baseline = max(row["score_majority"], row["score_shuffled"])
        assert row["above_baselines"] == (row["score_lo"] > baseline)
    assert not by_key[0, "pos", "magnitude"]["above_baselines"]
    assert by_key[0, "depth", "magnitude"]["above_baselines"]
    assert rows(warehouse, "probe_scores", target="pos", layer=1) == [
        row for row in found if (row["target"], row["layer"]) == ("pos", 1)
    ]
