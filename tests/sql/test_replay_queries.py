"""The queries of masking and of the zeroed sink, against the same resamples and areas worked out in numpy."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import sql
from storage.warehouse import query
from tasks.stages.registry import tables
from tests.sql.made_up import DOCS, TOKENS, Columns, capture_columns
from tests.sql.made_up_replays import GRID, columns_of, masking_columns, sink_columns

RESAMPLES = 200
DOCUMENTS = capture_columns("alpha", "float32")["documents"]
CONDITION = ("scope", "reduce", "direction", "sign", "keep_first", "layers")
PUBLISHED = ["raw", "vw", "vwon", "cw_intra", "cw_inter"]


def rows(connection: duckdb.DuckDBPyConnection, name: str, **params: Any) -> list[dict[str, Any]]:
    return list(query(connection, name, params).to_pylist())


def resampled(n_docs: int) -> np.ndarray:
    """(RESAMPLES, n_docs) numbers of documents, by the rule that the macro states."""

    def chosen(resample: int, place: int) -> int:
        return int.from_bytes(hashlib.md5(f"{resample}:{place}".encode()).digest()[8:], "little") % n_docs

    return np.array([[chosen(b, place) for place in range(n_docs)] for b in range(1, RESAMPLES + 1)])


def area(heights: np.ndarray) -> np.ndarray:
    """Mean height of curves (…, rates) from (0, 0) to the highest rate."""
    rates = np.array([0, *np.float32(GRID.rates)], np.float64)
    start = np.zeros((*heights.shape[:-1], 1))
    return np.asarray(np.trapezoid(np.concatenate([start, heights], -1), rates) / rates[-1])


@pytest.fixture(scope="module")
def cells() -> dict[tuple[Any, ...], np.ndarray]:
    """nll_sum of every condition and score, (draws, rates, documents)."""
    columns = masking_columns(range(DOCS), DOCUMENTS)
    keys = list(zip(*(columns[name] for name in (*CONDITION, "score")), strict=True))
    at = {key: np.array([k == key for k in keys]) for key in dict.fromkeys(keys)}
    # The made-up rows are by document, then draw, then rate.
    return {
        key: columns["nll_sum"][rows].reshape(DOCS, -1, len(GRID.rates)).transpose(1, 2, 0) for key, rows in at.items()
    }


def areas(nll: np.ndarray, documents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Areas under ΔNLL and ΔPPL over documents (…, n) of nll (draws, rates, documents), random's draws averaged."""
    n = (TOKENS - 1) * documents.shape[-1]
    damaged = np.moveaxis(nll.mean(0)[:, documents].sum(-1) / n, 0, -1)
    clean = DOCUMENTS["nll_sum"][documents].sum(-1)[..., None] / n
    return area(damaged - clean), area(np.exp(damaged) - np.exp(clean))


@pytest.mark.parametrize("direction", GRID.directions)
def test_score_hierarchy(
    warehouse: duckdb.DuckDBPyConnection, cells: dict[tuple[Any, ...], np.ndarray], direction: str
) -> None:
    found = rows(warehouse, "score_hierarchy", direction=direction, resamples=RESAMPLES)
    assert len(found) == sum(key[CONDITION.index("direction")] == direction for key in cells)
    better = 1 if direction == "comprehensiveness" else -1
    everything, draws = np.arange(DOCS), resampled(DOCS)
    for row in found:
        family = tuple(row[name] for name in CONDITION)
        mine = {key[-1]: nll for key, nll in cells.items() if key[:-1] == family}
        nll, ppl = areas(mine[row["score"]], everything)
        assert [row["nll_area"], row["perplexity_area"]] == pytest.approx([float(nll), float(ppl)], rel=1e-9)
        by_nll = {score: areas(nll, draws)[0] for score, nll in mine.items()}
        by_ppl = areas(mine[row["score"]], draws)[1]
        minus_raw = by_nll[row["score"]] - by_nll["raw"]
        for name, values in (
            ("nll_area", by_nll[row["score"]]),
            ("perplexity_area", by_ppl),
            ("nll_area_minus_raw", minus_raw),
        ):
            interval = [row[f"{name}_lo"], row[f"{name}_hi"]]
            assert interval == pytest.approx(list(np.quantile(values, [0.025, 0.975])), rel=1e-9, abs=1e-12)
        assert row["nll_area_minus_raw"] == pytest.approx(nll - areas(mine["raw"], everything)[0], abs=1e-12)
        ahead = [s for s in mine if better * (areas(mine[s], everything)[0] - nll) > 0]
        assert row["faithfulness_rank"] == 1 + len(ahead)
        if row["score"] in PUBLISHED[1:]:
            previous = PUBLISHED[PUBLISHED.index(row["score"]) - 1]
            wins = np.sign(better * (by_nll[row["score"]] - by_nll[previous]))
            assert (row["previous"], row["beats_previous_share"]) == (previous, pytest.approx(((1 + wins) / 2).mean()))
        else:
            assert (row["previous"], row["beats_previous_share"]) == (None, None)


def test_vw_and_vwon_in_a_row_tie(warehouse: duckdb.DuckDBPyConnection) -> None:
    found = {
        r["score"]: r for r in rows(warehouse, "score_hierarchy", scope="row", resamples=20) if r["sign"] == "signed"
    }
    assert found["vwon"]["beats_previous_share"] == 0.5
    assert found["vwon"]["faithfulness_rank"] == found["vw"]["faithfulness_rank"]


def test_faithfulness_curve(warehouse: duckdb.DuckDBPyConnection, cells: dict[tuple[Any, ...], np.ndarray]) -> None:
    found = rows(warehouse, "faithfulness_curve")
    assert len(found) == len(cells) * len(GRID.rates)
    n, clean = DOCS * (TOKENS - 1), DOCUMENTS["nll_sum"].sum()
    for row in found:
        nll = cells[(*(row[name] for name in CONDITION), row["score"])]
        per_draw = nll[:, list(np.float32(GRID.rates)).index(np.float32(row["rate"]))].sum(-1) / n
        assert (row["n_docs"], row["n_predicted"], row["n_draws"]) == (DOCS, n, len(nll))
        assert row["nll_change"] == pytest.approx(per_draw.mean() - clean / n, abs=1e-12)
        assert row["perplexity_change"] == pytest.approx(np.exp(per_draw.mean()) - np.exp(clean / n))
        assert row["perplexity_clean"] == pytest.approx(np.exp(clean / n))
        assert row["masked_fraction"] == pytest.approx(row["rate"])
        if row["score"] == "random":
            assert row["nll_change_draws_sd"] == pytest.approx(per_draw.std(ddof=1))
        else:
            assert row["nll_change_draws_sd"] is None


def test_the_areas_are_those_under_the_curves(warehouse: duckdb.DuckDBPyConnection) -> None:
    chosen = {"scope": "token", "direction": "sufficiency", "layers": "all"}
    curve = rows(warehouse, "faithfulness_curve", score="random", **chosen)
    heights = np.array([r["nll_change"] for r in curve]).reshape(-1, len(GRID.rates))
    found = [r for r in rows(warehouse, "score_hierarchy", resamples=0, **chosen) if r["score"] == "random"]
    assert [r["nll_area"] for r in found] == pytest.approx(list(area(heights)))
    assert {r["nll_area_lo"] for r in found} == {None}
    assert rows(warehouse, "faithfulness_curve", layers="3") == []


def test_sink_removal_effect(warehouse: duckdb.DuckDBPyConnection) -> None:
    columns = sink_columns(range(DOCS), DOCUMENTS)
    found = rows(warehouse, "sink_removal_effect", resamples=RESAMPLES)
    assert [r["layers"] for r in found] == ["0", "1", "all"]
    for row in found:
        nll = columns["nll_sum"][columns["layers"] == row["layers"]]
        for documents, ends in ((np.arange(DOCS), None), (resampled(DOCS), [0.025, 0.975])):
            n = (TOKENS - 1) * DOCS
            changed, clean = nll[documents].sum(-1) / n, DOCUMENTS["nll_sum"][documents].sum(-1) / n
            for name, values in (("nll", changed - clean), ("perplexity", np.exp(changed) - np.exp(clean))):
                if ends is None:
                    assert row[f"{name}_change"] == pytest.approx(values)
                else:
                    interval = [row[f"{name}_change_lo"], row[f"{name}_change_hi"]]
                    assert interval == pytest.approx(list(np.quantile(values, ends)))
    assert rows(warehouse, "sink_removal_effect", layers="all", resamples=RESAMPLES) == found[-1:]


def masked(doc: int, score: str, rate: float, nll_sum: float, direction: str = "comprehensiveness") -> dict[str, Any]:
    named = {"capture": "a", "doc": doc, "scope": "entry", "reduce": "none", "direction": direction}
    named |= {"sign": "absolute", "keep_first": False, "layers": "all", "score": score, "draw": 0, "rate": rate}
    return {**named, "nll_sum": nll_sum, "nll_clean_sum": 20.0 + 10 * doc, "n_predicted": 10, "masked_fraction": rate}


@pytest.fixture
def bare() -> Iterator[duckdb.DuckDBPyConnection]:
    """The macros, and whatever tables a test makes."""
    with duckdb.connect() as connection:
        connection.execute(sql.macros())
        connection.execute("create table captures as select 'a' as capture, 'm' as model")
        yield connection


def fill(connection: duckdb.DuckDBPyConnection, found: list[dict[str, Any]]) -> None:
    columns: Columns = columns_of(found)
    schema = pa.schema([f for f in tables()["masking"].schema if f.name in columns])
    connection.register("rows", pa.table({name: columns[name] for name in schema.names}, schema=schema))
    connection.execute("create or replace table masking as select * from rows")


def hierarchy(connection: duckdb.DuckDBPyConnection) -> dict[str, dict[str, Any]]:
    file = sql.read("queries", "score_hierarchy")
    values = {p.name: p.default for p in file.parameters}
    return {row["score"]: row for row in connection.sql(file.body, params=values).to_arrow_table().to_pylist()}


def test_an_area_by_hand(bare: duckdb.DuckDBPyConnection) -> None:
    """Clean 2.5 nats a token; 2.9 at a rate of ¼ and 3.5 at ¾: (¼ · 0.4/2 + ½ · (0.4 + 1)/2) / ¾ = 8/15."""
    fill(
        bare,
        [masked(d, "vw", rate, nll) for d, rate, nll in ((0, 0.25, 24), (1, 0.25, 34), (0, 0.75, 30), (1, 0.75, 40))],
    )
    row = hierarchy(bare)["vw"]
    assert row["nll_area"] == pytest.approx(8 / 15)
    clean, low, high = np.exp([2.5, 2.9, 3.5])
    expected = (0.25 * (low - clean) / 2 + 0.5 * ((low - clean) + (high - clean)) / 2) / 0.75
    assert row["perplexity_area"] == pytest.approx(expected)
    # Both documents are damaged alike, so no resample differs; without raw there is nothing to be compared with.
    assert (row["nll_area_lo"], row["nll_area_hi"]) == pytest.approx((8 / 15, 8 / 15))
    assert (row["nll_area_minus_raw"], row["previous"], row["faithfulness_rank"]) == (None, None, 1)


@pytest.mark.parametrize(("direction", "first"), [("comprehensiveness", "cw_inter"), ("sufficiency", "raw")])
def test_what_is_more_faithful_turns_with_the_direction(
    bare: duckdb.DuckDBPyConnection, direction: str, first: str
) -> None:
    fill(
        bare,
        [masked(d, s, 0.5, 25.0 + 10 * d + at, direction) for d in (0, 1) for at, s in enumerate(("raw", "cw_inter"))],
    )
    found = hierarchy(bare)
    assert found[first]["faithfulness_rank"] == 1
    assert found["cw_inter"]["nll_area_minus_raw"] == pytest.approx(0.05)
    assert found["cw_inter"]["previous"] == "raw"  # the nearest before it that was run
    assert found["cw_inter"]["beats_previous_share"] == (1 if first == "cw_inter" else 0)


def test_one_document_has_no_interval(bare: duckdb.DuckDBPyConnection) -> None:
    fill(bare, [masked(0, score, 0.5, 25.0) for score in ("raw", "vw")])
    row = hierarchy(bare)["vw"]
    assert (row["n_docs"], row["nll_area"]) == (1, pytest.approx(0.25))
    empty = {name: value for name, value in row.items() if name.endswith(("_lo", "_hi", "_share"))}
    assert len(empty) == 7
    assert set(empty.values()) == {None}


def test_an_undefined_loss_leaves_its_own_score_undefined(bare: duckdb.DuckDBPyConnection) -> None:
    found = [masked(d, score, 0.5, 25.0 + 10 * d) for d in (0, 1) for score in ("raw", "vw", "vwon")]
    found[1]["nll_sum"] = None
    fill(bare, found)
    answers = hierarchy(bare)
    assert answers["vw"]["nll_area"] is None
    assert answers["vw"]["nll_area_hi"] is None
    assert answers["vw"]["beats_previous_share"] is None
    assert answers["vwon"]["nll_area"] == pytest.approx(0.25)


def test_any_number_of_threads_gives_the_same_bytes(bare: duckdb.DuckDBPyConnection) -> None:
    drawn = np.random.default_rng(0).random((30, len(PUBLISHED), 4))
    fill(
        bare,
        [
            masked(d, score, (r + 1) / 4, 20.0 + 10 * d + drawn[d, s, r])
            for d in range(30)
            for s, score in enumerate(PUBLISHED)
            for r in range(4)
        ],
    )
    answers = []
    for threads in (1, 3):
        bare.execute(f"set threads = {threads}")
        answers.append(hierarchy(bare))
    assert answers[0] == answers[1]
    assert answers[0]["vw"]["nll_area_lo"] < answers[0]["vw"]["nll_area"] < answers[0]["vw"]["nll_area_hi"]
