"""The queries over scalograms and spectra: their figures against the same worked out in numpy, and what a run tells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import duckdb
import numpy as np
import pytest

from storage.filesystem import LocalFolder
from storage.warehouse import connect, query
from tasks.stages.multiscale.summary import coherency_lines, pod_lines, scalogram_lines
from tasks.stages.registry import tables
from tests.sql.made_up import HEADS, LAYERS, Columns
from tests.sql.made_up_multiscale import (
    EPSILONS,
    SIZES,
    coherency_columns,
    eigenvalues,
    measures,
    scalogram_columns,
)
from tests.sql.made_up_runs import MadeUp
from tests.sql.made_up_selection import taxonomy_columns


def rows(connection: duckdb.DuckDBPyConnection, name: str, **params: Any) -> list[dict[str, Any]]:
    return list(query(connection, name, params).to_pylist())


def ranks(layer: int, head: int | None, scale: float | None, field: str, size: int, epsilon: float) -> list[int]:
    draws = range(1 if field == "observed" else 3)
    values = [eigenvalues(layer, head, scale, field, draw, size) for draw in draws]
    return [measures(v, epsilon, "exact")["h_star"] for v in values]


def test_effective_rank_beside_its_nulls(warehouse: duckdb.DuckDBPyConnection) -> None:
    found = rows(warehouse, "effective_rank", per_head=True, epsilon=None)
    assert len(found) == LAYERS * 3 * len(SIZES) * len(EPSILONS)
    for row in found:
        place = (row["layer"], row["head"], row["filter_scale"])
        at = (row["n_snapshots"], round(row["epsilon"], 3))
        assert [row["h_star"]] == ranks(*place, "observed", *at)
        for null, short in (("lag_shuffle", "lag_shuffle"), ("gaussian", "gaussian")):
            drawn = ranks(*place, null, *at)
            assert row[f"{short}_mean"] == pytest.approx(np.mean(drawn))
            expected = (row["h_star"] - np.mean(drawn)) / np.sqrt(np.var(drawn, ddof=1) + 1 / 6)
            assert row[f"z_{short}"] == pytest.approx(expected)
        assert row["h_star_published"] is None
    assert {row["n_snapshots"] for row in rows(warehouse, "effective_rank", whole=True)} == {SIZES[-1]}
    assert {row["head"] for row in rows(warehouse, "effective_rank", layer=1)} == {None}


def test_published_figures_stand_beside_a_model_of_six_layers(runs: LocalFolder) -> None:
    def six(columns: Columns) -> None:
        columns["n_layers"] = np.asarray([6])

    MadeUp(runs, "alpha", changes={"captures": six}).republish()
    connection = connect(runs, tables())
    found = rows(connection, "effective_rank", whole=True)
    told = {(row["layer"], row["filter_scale"]): row["h_star_published"] for row in found}
    assert told == {(0, None): "> 150 at N = 150", (1, None): "> 150 at N = 150", (0, 5.0): None, (1, 5.0): None}
    assert {row["t_spec_printed"] for row in rows(connection, "published_vs_exact")} == {1.0}
    assert {row["energy_published"] for row in rows(connection, "scale_by_layer")} == {"most at a ≤ 7"}


def test_scale_by_layer(warehouse: duckdb.DuckDBPyConnection) -> None:
    columns = scalogram_columns()["scalogram"]
    found = rows(warehouse, "scale_by_layer", per_head=True)
    assert [(row["layer"], row["head"]) for row in found] == [(0, None), (0, 1), (1, None), (1, 1)]
    for row in found:
        of_row = (
            (columns["layer"] == row["layer"]) & (columns["head"] == row["head"]) & (columns["protocol"] == "exact")
        )
        for field, suffix in (("observed", ""), ("uniform", "_uniform"), ("doc_shuffle", "_shuffled")):
            mine = of_row & (columns["field"] == field)
            share, scale = columns["energy_share"][mine], columns["scale"][mine]
            assert row[f"fine_share{suffix}"] == pytest.approx(share[scale <= 7].sum(), rel=1e-6)
            assert row[f"coarse_share{suffix}"] == pytest.approx(share[scale >= 20].sum(), rel=1e-6)
        best = of_row & (columns["field"] == "observed") & columns["dominant"]
        assert row["dominant_scales"] == columns["scale"][best].tolist()
        assert (row["mass_to_7"], row["mass_from_20"]) == (pytest.approx(0.75 + 0.1 * row["layer"]), 0)


def test_a_share_at_scales_that_were_not_taken_is_not_zero(runs: LocalFolder) -> None:
    """A window of 64 tokens ends at 16; told by hand, scales may begin above 7."""

    def of_scales(low: float, high: float) -> Callable[[Columns], None]:
        def change(columns: Columns) -> None:
            kept = (columns["scale"] >= low) & (columns["scale"] <= high)
            columns.update({name: values[kept] for name, values in columns.items()})

        return change

    MadeUp(runs, "alpha", changes={"scalogram": of_scales(0, 16)}).republish()
    connection = connect(runs, tables())
    for row in rows(connection, "scale_by_layer"):
        assert [row[f"coarse_share{of}"] for of in ("", "_uniform", "_shuffled")] == [None] * 3
        assert row["fine_share"] > 0 and row["middle_share"] > 0
    line = next(scalogram_lines(connection, "alpha"))
    assert "; no scale of 20 or more in this window" in line and "from 20 (" not in line
    MadeUp(runs, "alpha", changes={"scalogram": of_scales(8, 30)}).republish()
    connection = connect(runs, tables())
    assert {row["fine_share"] for row in rows(connection, "scale_by_layer")} == {None}
    line = next(scalogram_lines(connection, "alpha"))
    assert "from 20 (documents shuffled " in line and "; no scale up to 7 was asked for" in line


def test_published_vs_exact(warehouse: duckdb.DuckDBPyConnection) -> None:
    found = rows(warehouse, "published_vs_exact", epsilon=0.05)
    assert [(row["layer"], row["n_snapshots"]) for row in found] == [(0, 3), (0, 4), (1, 3), (1, 4)]
    for row in found:
        exact, published = (
            measures(eigenvalues(row["layer"], None, None, "observed", 0, row["n_snapshots"]), 0.05, protocol)
            for protocol in ("exact", "published")
        )
        assert (row["h_star_exact"], row["h_star_published"]) == (exact["h_star"], exact["h_star"] + 1)
        assert row["t_spec_published"] == pytest.approx(published["t_spec"], rel=1e-6)
        assert (row["t_spec_exact"] is None) == np.isnan(exact["t_spec"])
        assert (row["scales_exact"], row["scales_published"]) == ([5.0], [2.0])
        assert row["energy_ratio_published"] > 1


def test_rank_by_class_and_head_allocation(warehouse: duckdb.DuckDBPyConnection) -> None:
    taxonomy = taxonomy_columns()["taxonomy"]
    for row in rows(warehouse, "rank_by_class"):
        mine = (taxonomy["layer"] == row["layer"]) & (taxonomy["rule"] == "plurality")
        assert row["n_heads"] == HEADS == row["n_retriever"] + row["n_mixer"] + row["n_reset"]
        assert row["n_mixer"] == (taxonomy["class"][mine] == "mixer").sum()
        assert row["share_self_mean"] == pytest.approx(taxonomy["share_self"][mine].mean(), rel=1e-6)
        place = (row["layer"], None, None)
        assert [row["h_star"]] == ranks(*place, "observed", SIZES[-1], 0.1)
        above = row["h_star"] - np.mean(ranks(*place, "lag_shuffle", SIZES[-1], 0.1))
        assert row["h_star_above_null"] == pytest.approx(above)
        assert row["h_star_self_correlation"] is None  # two layers are too few
    found = rows(warehouse, "head_allocation")
    whole = sum(row["h_star"] for row in found)
    for row in found:
        assert row["heads_in_proportion"] == pytest.approx(row["h_star"] / whole * HEADS * LAYERS)
        assert row["h_star_head_mean"] == ranks(row["layer"], 1, None, "observed", SIZES[-1], 0.1)[0]


def test_what_a_run_tells(warehouse: duckdb.DuckDBPyConnection) -> None:
    scales = list(scalogram_lines(warehouse, "alpha"))
    assert [line.split(",")[0] for line in scales] == ["Layer 0", "Layer 1"]
    assert "0% of the attention goes 20 or more back." in scales[0]
    (line,) = pod_lines(warehouse, "alpha")
    assert line.startswith("Effective rank H*(0.10) of 4 documents' fields: ") and " of at most 3, of noise" in line
    assert line.endswith(": 2 of at most 3, of noise of the same size 2 to 3; not told from a null in layers 0–1.")
    assert coherency_columns()["coherency"]["query_i"].tolist() == [5, 5]
    assert list(coherency_lines(warehouse, "alpha")) == []  # there is no pair of different rows


def test_a_rank_apart_from_both_nulls_is_told(runs: LocalFolder) -> None:
    def low(columns: Columns) -> None:
        observed = (columns["field"] == "observed") & (columns["protocol"] == "exact")
        columns["h_star"] = np.where(observed, 1, 3)
        columns["saturated"] = ~observed

    MadeUp(runs, "alpha", changes={"pod_summary": low}).republish()
    (line,) = pod_lines(connect(runs, tables()), "alpha")
    assert line.endswith(": 1 of at most 3, of noise of the same size 3; apart from both nulls in every layer.")


def test_two_draws_tell_nothing(runs: LocalFolder) -> None:
    def two(columns: Columns) -> None:
        kept = columns["draw"] < 2
        columns.update({name: values[kept] for name, values in columns.items()})

    MadeUp(runs, "alpha", changes={"pod_summary": two}).republish()
    connection = connect(runs, tables())
    found = rows(connection, "effective_rank")
    assert {row["n_draws"] for row in found} == {2}
    for name in ("z_lag_shuffle", "z_gaussian", "z_beta_lag_shuffle", "z_beta_gaussian"):
        assert {row[name] for row in found} == {None}
    (line,) = pod_lines(connection, "alpha")
    assert "; too few draws (2) to tell whether they are apart" in line and "null" not in line


@pytest.mark.parametrize(("grown", "told"), [(20, "in layers 0–1 the number of documents decides (from"), (17, "")])
def test_a_rank_that_grows_with_the_documents_is_told(runs: LocalFolder, grown: int, told: str) -> None:
    """Though it is not near its most."""

    def growing(columns: Columns) -> None:
        columns["n_snapshots"] = np.where(columns["n_snapshots"] == SIZES[-1], 4, 2)
        observed = (columns["field"] == "observed") & (columns["n_snapshots"] == 4)
        columns["h_star"] = np.where(observed, grown, 10)
        columns["saturated"] = np.zeros(len(observed), bool)

    MadeUp(runs, "alpha", changes={"pod_summary": growing}).republish()
    (line,) = pod_lines(connect(runs, tables()), "alpha")
    assert line.endswith(f"; {told} half of them to all H* grows 2.0 times)." if told else "in every layer.")
