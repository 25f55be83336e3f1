"""The queries over selections and classes: their figures against the same worked out in numpy."""

from __future__ import annotations

from typing import Any

import duckdb
import numpy as np
import pytest

from storage.filesystem import LocalFolder
from storage.warehouse import connect, query
from tasks.stages.registry import tables
from tests.sql.made_up import DOCS, HEADS, LAYERS, Columns
from tests.sql.made_up_runs import MadeUp
from tests.sql.made_up_selection import selection_columns, statistics_columns, taxonomy_columns

TAXONOMY = taxonomy_columns()["taxonomy"]


def rows(connection: duckdb.DuckDBPyConnection, name: str, **params: Any) -> list[dict[str, Any]]:
    return list(query(connection, name, params).to_pylist())


def everything(*layers: int) -> Columns:
    """All rows of the table selection, with doc and layer."""
    pieces = []
    for doc in range(DOCS):
        for layer in layers or range(LAYERS):
            piece = selection_columns(doc, layer)
            n = len(piece["head"])
            pieces.append({**piece, "doc": np.full(n, doc), "layer": np.full(n, layer)})
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}


def where(columns: Columns, row: dict[str, Any], *names: str) -> np.ndarray:
    return np.logical_and.reduce([columns[name] == row[name] for name in names])


def by_query(columns: Columns, chosen: np.ndarray) -> dict[tuple[int, ...], dict[int, float]]:
    """F by N, of each query of the rows chosen."""
    found: dict[tuple[int, ...], dict[int, float]] = {}
    for at in np.flatnonzero(chosen):
        place = tuple(int(columns[name][at]) for name in ("doc", "layer", "head", "query"))
        found.setdefault(place, {})[int(columns["n"][at])] = float(np.float32(columns["f_score"][at]))
    return found


def test_separability(warehouse: duckdb.DuckDBPyConnection) -> None:
    columns, found = everything(1), rows(warehouse, "separability", layer=1)
    assert len(found) == 2 * 2 * 2 * 2 and {row["n"] for row in found} == {2, 4}
    for row in found:
        mine = where(columns, row, "ranking", "distance", "sink", "n")
        assert row["n_rows"] == mine.sum()
        for name, column in (("f_mean", "f_score"), ("precision_mean", "precision"), ("mass_mean", "mass")):
            assert row[name] == pytest.approx(columns[column][mine].mean(), rel=1e-5)
        drawn = mine & ~np.isnan(columns["random_f_mean"])
        assert row["n_drawn"] == drawn.sum() <= row["n_rows"]
        above = (columns["f_score"] - columns["random_f_mean"])[drawn].mean()
        assert row["f_above_random"] == pytest.approx(above, abs=1e-6)
        queries = by_query(columns, where(columns, row, "ranking", "distance", "sink") & (columns["n"] > 1))
        best = [min(f, key=lambda n: (-f[n], n)) for f in queries.values()]
        assert row["best_share"] == pytest.approx(np.mean([n == row["n"] for n in best]))


def test_sink_effect_is_paired_per_query(warehouse: duckdb.DuckDBPyConnection) -> None:
    columns, found = everything(), rows(warehouse, "sink_effect")
    assert {(row["ranking"], row["distance"], row["n"]) for row in found} == {
        (r, d, n) for r in ("attention", "contribution") for d in ("euclidean", "cosine") for n in (2, 4)
    }
    for row in found:
        mine = where(columns, row, "ranking", "distance", "n")
        kept, gone = (by_query(columns, mine & (columns["sink"] == sink)) for sink in ("included", "excluded"))
        both = sorted(set(kept) & set(gone))
        assert row["n_queries"] == len(both) == len(gone) < len(kept)
        pairs = np.array([(kept[place][row["n"]], gone[place][row["n"]]) for place in both])
        assert row["difference_mean"] == pytest.approx((pairs[:, 0] - pairs[:, 1]).mean(), abs=1e-7)
        assert row["ratio"] == pytest.approx(pairs[:, 1].sum() / pairs[:, 0].sum(), rel=1e-6)
        assert row["lower_share"] == pytest.approx((pairs[:, 0] < pairs[:, 1]).mean())
        heads = sorted({place[:3] for place in both})
        ratio = [statistics_columns(doc, layer)["norm_ratio"][head] for doc, layer, head in heads]
        assert row["norm_ratio_mean"] == pytest.approx(np.mean(ratio), rel=1e-6)
        change = [np.mean([a - b for p, (a, b) in zip(both, pairs, strict=True) if p[:3] == head]) for head in heads]
        assert row["difference_norm_ratio_correlation"] == pytest.approx(np.corrcoef(change, ratio)[0, 1], abs=1e-5)


def test_head_classes_count_every_class(warehouse: duckdb.DuckDBPyConnection) -> None:
    found = rows(warehouse, "head_classes")
    assert [(row["rule"], row["class"]) for row in found] == [
        (r, c) for r in ("plurality", "majority", "final_query") for c in ("retriever", "mixer", "reset")
    ]
    for row in found:
        mine = where(TAXONOMY, row, "rule", "class")
        assert (row["n_heads"], row["share"]) == (mine.sum(), mine.sum() / (LAYERS * HEADS))
        if mine.any():
            assert row["margin_mean"] == pytest.approx(TAXONOMY["margin"][mine].mean(), rel=1e-5)
        else:
            assert row["margin_mean"] is None
        assert row["share_published"] == ("0.058 to 0.172" if row["class"] == "retriever" else None)
    assert sum(row["n_heads"] for row in rows(warehouse, "head_classes", layer=0)) == 3 * HEADS


def test_class_stability_without_another_corpus(warehouse: duckdb.DuckDBPyConnection) -> None:
    found = rows(warehouse, "class_stability")
    assert [(row["rule"], row["other"], row["kappa"]) for row in found] == [
        (rule, None, None) for rule in ("plurality", "majority", "final_query")
    ]
    assert found[0]["agreement_halves_mean"] == pytest.approx(TAXONOMY["agreement_halves"].mean())


def test_kappa_between_two_corpora_of_one_model(runs: LocalFolder) -> None:
    """Cohen 1960 by hand: agreement less what the classes' frequencies alone would give."""

    def turned(columns: Columns) -> None:
        columns["class"] = columns["class"].copy()
        columns["class"][:9] = np.roll(columns["class"][:9], 3)

    def elsewhere(columns: Columns) -> None:
        columns["corpus_digest"] = np.asarray(["9" * 64])

    MadeUp(runs, "beta", changes={"taxonomy": turned, "captures": elsewhere}).publish()
    connection = connect(runs, tables())
    found = {(row["capture"], row["rule"]): row for row in rows(connection, "class_stability")}
    other = {name: column.copy() for name, column in TAXONOMY.items()}
    turned(other)
    for rule in ("plurality", "majority", "final_query"):
        mine = TAXONOMY["rule"] == rule
        a, b = TAXONOMY["class"][mine], other["class"][mine]
        chance = sum((a == c).mean() * (b == c).mean() for c in ("retriever", "mixer", "reset"))
        row = found["alpha", rule]
        assert (row["other"], row["n_common"]) == ("beta", LAYERS * HEADS)
        assert row["agreement"] == pytest.approx((a == b).mean())
        kappa = ((a == b).mean() - chance) / (1 - chance) if chance < 1 else None
        assert row["kappa"] == (None if kappa is None else pytest.approx(kappa))
        assert found["beta", rule]["kappa"] == row["kappa"]
    assert any(row["kappa"] not in (None, 1) for row in found.values())
