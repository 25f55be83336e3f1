"""The queries of perturbed residual streams, against the same worked out in numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import duckdb
import numpy as np
import pytest

from storage.warehouse import query
from tasks.stages.perturbation.grid import INCLUDE, Cell, label
from tests.sql.made_up import DOCS, LAYERS, TOKENS, Columns
from tests.sql.made_up_perturbation import (
    GRID,
    REPAIRS,
    SAMPLED,
    cells,
    damage,
    distance,
    perturbed_damage,
    repaired_damage,
    tokens,
)
from tests.sql.test_replay_queries import RESAMPLES, resampled

DRAWS = resampled(DOCS)
LABELS = {label(layers, LAYERS): layers for layers in GRID.layer_sets(LAYERS)}


def rows(connection: duckdb.DuckDBPyConnection, name: str, **params: Any) -> list[dict[str, Any]]:
    return list(query(connection, name, {"resamples": RESAMPLES, **params}).to_pylist())


def close(value: Any) -> Any:
    return pytest.approx(value, rel=1e-5, abs=1e-9)


def ends(values: np.ndarray) -> Any:
    return close(list(np.quantile(values, [0.025, 0.975])))


def seeds_of(row: dict[str, Any], arm: str, *, repair: bool = False) -> list[Cell]:
    """The cells of a row, one a seed."""
    wanted = {"protocol": row["protocol"], "delta_kind": row["delta_kind"], "layers": LABELS[row["layers"]]}
    wanted |= {"first_token": row["first_token"]} if "first_token" in row else {}
    found = cells(**wanted, arm=arm, repair=repair)
    return [cell for cell in found if cell.delta == pytest.approx(row["delta"], rel=1e-5)]


def changes(of_seeds: list[Cell]) -> np.ndarray:
    """Nats a token of each document, the mean of the seeds; all documents have as many tokens."""
    return np.array([[damage(doc, cell) for cell in of_seeds] for doc in range(DOCS)]).mean(1)


def test_dissociation(warehouse: duckdb.DuckDBPyConnection) -> None:
    found = rows(warehouse, "dissociation")
    assert len(found) == 2 * 2 * 3 * 3
    for row in found:
        by_arm = {arm: changes(seeds_of(row, arm)) for arm in ("magnitude", "angle")}
        for arm, of_docs in by_arm.items():
            assert row[f"nll_change_{arm}"] == close(of_docs.mean())
            assert [row[f"nll_change_{arm}_lo"], row[f"nll_change_{arm}_hi"]] == ends(of_docs[DRAWS].mean(1))
        magnitude, angle = by_arm["magnitude"], by_arm["angle"]
        assert row["ratio"] == close(angle.sum() / magnitude.sum())
        assert [row["ratio_lo"], row["ratio_hi"]] == ends(angle[DRAWS].sum(1) / magnitude[DRAWS].sum(1))
        assert row["difference"] == close((angle - magnitude).mean())
        assert [row["difference_lo"], row["difference_hi"]] == ends((angle - magnitude)[DRAWS].mean(1))
        pooled = np.sqrt((angle.var(ddof=1) + magnitude.var(ddof=1)) / 2)
        assert row["cohens_d"] == close((angle.mean() - magnitude.mean()) / pooled)
        assert row["docs_angle_larger_share"] == close((angle > magnitude).mean())
        assert (row["n_docs"], row["n_seeds"], row["norm"]) == (DOCS, 2, "layernorm")
    published = {(row["delta_kind"], round(row["delta"], 3)): row["ratio_published"] for row in found}
    assert published == {("absolute", 0.5): None, ("absolute", 1.0): 42.9, ("relative", 0.1): None}
    chosen = {"protocol": "exact", "first_token": "exclude", "layers": "1"}
    assert rows(warehouse, "dissociation", **chosen) == [r for r in found if all(r[n] == chosen[n] for n in chosen)]


def test_displacement_confound(warehouse: duckdb.DuckDBPyConnection) -> None:
    found = rows(warehouse, "displacement_confound")
    assert len(found) == 2 * 2 * 3 * 3
    for row in found:
        by_first = {}
        for first in (INCLUDE, "exclude"):
            of_seeds = seeds_of({**row, "first_token": first}, row["arm"])
            shares, typical = [], []
            for cell in of_seeds:
                for doc in SAMPLED:
                    for layer in cell.layers:
                        norm, step, _ = tokens(doc, cell, layer)
                        shares.append(step[np.argmax(norm)] / step.sum())
                        typical.append(np.median(step))
                        assert row["longest_to_median"] >= norm.max() / np.median(norm) - 1e-4
            assert row[f"longest_share_{first}"] == close(np.mean(shares))
            assert row[f"displacement_typical_{first}"] == close(np.mean(typical))
            by_first[first] = changes(of_seeds)
            assert row[f"nll_change_{first}"] == close(by_first[first].mean())
        apart = by_first[INCLUDE] - by_first["exclude"]
        assert row["difference"] == close(apart.mean())
        assert [row["difference_lo"], row["difference_hi"]] == ends(apart[DRAWS].mean(1))
    confounded = [row for row in found if (row["protocol"], row["arm"]) == ("published", "angle")]
    assert all(row["longest_share_include"] > 0.6 for row in confounded)


def test_repair_recovery(warehouse: duckdb.DuckDBPyConnection) -> None:
    found = rows(warehouse, "repair_recovery")
    assert len(found) == 4 * 3 * 2 * 2
    for row in found:
        of_seeds, layers = seeds_of(row, row["arm"], repair=True), LABELS[row["repaired_layers"]]
        whole = np.array([[perturbed_damage(doc, cell) for cell in of_seeds] for doc in range(DOCS)]).mean(1)
        left = np.array(
            [[repaired_damage(doc, cell, row["target"], layers) for cell in of_seeds] for doc in range(DOCS)]
        ).mean(1)
        assert row["nll_change"] == close(whole.mean())
        assert row["n_docs_damaged"] == (whole >= 0.01).sum()
        if row["delta_kind"] == "relative":
            assert row["recovery_percent"] is row["recovery_percent_lo"] is row["recovery_percent_docs_median"] is None
            continue
        assert row["recovery_percent"] == close(100 * (whole - left).sum() / whole.sum())
        drawn = 100 * (whole - left)[DRAWS].sum(1) / whole[DRAWS].sum(1)
        assert [row["recovery_percent_lo"], row["recovery_percent_hi"]] == ends(drawn)
        assert row["recovery_percent_docs_median"] == close(np.median(100 * (whole - left) / whole))
    published = {
        (r["target"], r["arm"]): r["recovery_percent_published"]
        for r in found
        if r["repaired_layers"] == "all" and r["delta_kind"] == "absolute"
    }
    assert published["attention_output", "angle"] == 28.4 and published["norm_output", "magnitude"] == 29.9
    other = [r for r in found if r["repaired_layers"] != "all" or r["delta_kind"] == "relative"]
    assert {r["recovery_percent_published"] for r in other} == {None}
    assert len(REPAIRS.targets) == 4


def test_propagation_ratio(warehouse: duckdb.DuckDBPyConnection) -> None:
    found = rows(warehouse, "propagation_ratio")
    assert len(found) == 2 * 2 * 3 * (2 + 2 + 1)
    for row in found:
        by_arm: dict[str, list[np.ndarray]] = {}
        for arm in ("magnitude", "angle"):
            of_seeds, first = seeds_of(row, arm), LABELS[row["layers"]][0]
            for layer in (row["layer"], first):
                far = np.array([[distance(doc, cell, layer) for cell in of_seeds] for doc in range(DOCS)]).mean(1)
                by_arm.setdefault(arm, []).append(far)
            here, start = by_arm[arm]
            assert row[f"distance_{arm}"] == close(here.mean())
            assert row[f"growth_{arm}"] == close(here.mean() / start.mean())
            assert row[f"distance_first_token_{arm}"] == close(here[:, 0].mean())
        angle, magnitude = (by_arm[arm][0].mean(1) for arm in ("angle", "magnitude"))
        assert row["ratio"] == close(angle.sum() / magnitude.sum())
        assert [row["ratio_lo"], row["ratio_hi"]] == ends(angle[DRAWS].sum(1) / magnitude[DRAWS].sum(1))
        assert row["ratio_published"] == (
            3.18 if row["layer"] == LAYERS - 1 and row["delta_kind"] == "absolute" else None
        )
        assert row["n_docs"] == DOCS and TOKENS == 6


def test_figures_of_a_layernorm_model_stand_beside_no_other(broken: Callable[..., duckdb.DuckDBPyConnection]) -> None:
    def other(columns: Columns) -> None:
        columns["norm"] = np.asarray(["rmsnorm"], dtype=object)

    connection = broken(captures=other)
    for name, figure in (
        ("repair_recovery", "recovery_percent_published"),
        ("propagation_ratio", "ratio_published"),
    ):
        assert {row[figure] for row in rows(connection, name)} == {None}
    pairs = query(connection, "pair_accuracy").to_pylist()
    assert pairs and {row["accuracy_published"] for row in pairs} == {None}


def test_an_undefined_recovery_has_no_interval(broken: Callable[..., duckdb.DuckDBPyConnection]) -> None:
    """Two documents of four gain more than the others suffer: only resamples of the others have damage enough."""

    def gaining(columns: Columns) -> None:
        columns["nll_perturbed_sum"] = columns["nll_clean_sum"] - 4.0 * columns["n_predicted"]

    found = rows(broken(repair=gaining), "repair_recovery")
    assert {(row["recovery_percent"], row["recovery_percent_lo"], row["recovery_percent_hi"]) for row in found} == {
        (None, None, None)
    }
    assert {row["n_docs_damaged"] for row in found if row["delta_kind"] == "absolute"} == {2}
