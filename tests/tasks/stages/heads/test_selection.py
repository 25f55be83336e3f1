"""The stage `selection`: its rows against plain loops, from a store in memory, and what its parameters do."""

from __future__ import annotations

import math
from typing import Any

import pytest

from storage.errors import UsageError
from tasks.stages.contract import StageContext
from tasks.stages.heads.declaration import SelectionParameters
from tasks.stages.registry import stage
from tasks.stages.requirements import require_kinds
from tests.oracles.selection import Oracle
from tests.tasks.stages.made_store import MemoryStore, Run, run_stage

KEY = ("doc", "layer", "head", "query", "ranking", "distance", "sink", "n")
SMALL = SelectionParameters(n=(1, 2, 4, 8), random_queries=3)


def run(store: MemoryStore, parameters: SelectionParameters = SMALL, **options: Any) -> Run:
    return run_stage(store, [store.shard(0, 1), store.shard(2)], parameters, name="selection", **options)


def oracles(store: MemoryStore) -> dict[tuple[int, int], Oracle]:
    """By (layer, document)."""
    return {
        (l, d): Oracle(made.attention.numpy(), made.value.numpy(), made.window, made.causal)
        for l, layer in enumerate(store.layers)
        for d, made in layer.items()
    }


@pytest.fixture(scope="module", params=["softmax", "learned sink", "encoder"])
def store(request: pytest.FixtureRequest) -> MemoryStore:
    return MemoryStore(learned_sink=request.param == "learned sink", causal=request.param != "encoder")


@pytest.fixture(scope="module")
def done(store: MemoryStore) -> Run:
    return run(store)


def test_every_row_is_the_oracle_s_and_none_is_missing(store: MemoryStore, done: Run) -> None:
    rows, seen, left_out = done.rows.rows("selection", *KEY), 0, 0
    for (l, d), oracle in oracles(store).items():
        for h in range(4):
            for i in range(oracle.T):
                for sink in ("included", "excluded"):
                    row = oracle.row(h, i, sink)
                    for ranking in ("attention", "contribution"):
                        order = row.order(ranking)
                        for n in (1, 2, 4, 8):
                            for distance in ("euclidean", "cosine"):
                                if n >= len(row.keys):
                                    left_out += 1
                                    continue
                                seen += 1
                                found = rows[d, l, h, i, ranking, distance, sink, n]
                                for name, value in row.select(order, n, distance).items():
                                    assert found[name] == pytest.approx(value, rel=1e-5, abs=1e-6), name
                                assert math.isnan(found["certified_recall"]) == (distance == "cosine")
    assert seen == len(rows) and done.quality["rows_left_out"] == left_out > 0


def test_sink_statistics(store: MemoryStore, done: Run) -> None:
    rows = done.rows.rows("sink_statistics", "doc", "layer", "head")
    assert len(rows) == 2 * 3 * 4
    for (l, d), oracle in oracles(store).items():
        for h in range(4):
            for name, value in oracle.sink_statistics(h).items():
                assert rows[d, l, h][name] == pytest.approx(value, rel=1e-5, abs=1e-6, nan_ok=True), name


def test_the_random_control_is_drawn_for_some_queries_and_shared(done: Run) -> None:
    """Three queries a document and layer, for both rankings alike, with a mean between 0 and 1."""
    drawn: dict[tuple[Any, ...], set[Any]] = {}
    for row in done.rows.rows("selection", *KEY).values():
        if not math.isnan(row["random_f_mean"]):
            assert 0 <= row["random_f_mean"] <= 1 and row["random_f_sd"] >= 0
            drawn.setdefault((row["doc"], row["layer"], row["sink"]), set()).add(row["query"])
            other = drawn.setdefault(tuple(row[k] for k in KEY if k != "ranking"), set())
            other.add(row["random_f_mean"])
    assert {len(queries) for key, queries in drawn.items() if len(key) == 3} <= {1, 3, 2, 0}
    assert all(len(values) == 1 for key, values in drawn.items() if len(key) == 7)
    for key, queries in drawn.items():
        if len(key) == 3 and key[0] == 0:
            assert len(queries) == 3 and queries == drawn[(*key[:2], "included")]


@pytest.mark.parametrize(("queries", "expected"), [("final", {12}), ("every", set(range(1, 13))), (5, None)])
def test_queries_are_every_one_the_final_one_or_a_sample(queries: int | str, expected: set[int] | None) -> None:
    store = MemoryStore()
    rows = run(store, SelectionParameters(queries=queries, n=(1,), sinks=("included",))).rows
    found = {row["query"] for row in rows.tables["selection"].to_pylist() if row["doc"] == 0}
    assert found == expected if expected else len(found) in (4, 5)
    other = run(store, SelectionParameters(queries=queries, n=(1,)), context=StageContext("key", seed=4)).rows
    moved = {row["query"] for row in other.tables["selection"].to_pylist() if row["doc"] == 0} != found
    assert moved == (expected is None)


def test_the_same_run_gives_the_same_rows_and_the_seed_moves_the_control_alone(store: MemoryStore, done: Run) -> None:
    again, other = run(store), run(store, context=StageContext("key", seed=4))
    for name, table in done.rows.tables.items():
        for column, same in zip(table.columns, again.rows.tables[name].columns, strict=True):
            assert column.combine_chunks().buffers()[-1] == same.combine_chunks().buffers()[-1]
    columns = (x.rows.tables["selection"] for x in (done, other))
    before, after = (table.select(["f_score", "certified_precision"]).to_pydict() for table in columns)
    assert str(before) == str(after)
    assert str(done.rows.tables["selection"]["random_f_mean"]) != str(other.rows.tables["selection"]["random_f_mean"])


def test_without_a_control_or_a_distance() -> None:
    parameters = SelectionParameters(distances=("cosine",), random_queries=0, n=(2,))
    found = run(MemoryStore(), parameters).rows.tables["selection"].to_pylist()
    assert found and all(math.isnan(row["random_f_mean"]) and math.isnan(row["certified_recall"]) for row in found)
    assert {row["distance"] for row in found} == {"cosine"}


def test_a_window_of_one_token_has_no_selection() -> None:
    done = run_stage(store := MemoryStore(lengths=(1,)), [store.shard(0)], SMALL, name="selection")
    assert "selection" not in done.rows.tables
    assert done.quality == {"rows_left_out": 2 * 4 * 4 * 8, "nan_sink_statistics": 8}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"queries": "some"}, "a number of queries from 1 to 1,000,000, got 'some', in selection.queries"),
        ({"queries": 0}, "a number of queries from 1 to 1,000,000, got 0, in selection.queries"),
        ({"rankings": ("attention", "norm")}, "the name of a ranking, got 'norm', in selection.rankings"),
        ({"sinks": ()}, "some of included, excluded, each once, got none, in selection.sinks"),
        ({"n": (0,)}, "n from 1 to 4,096, got 0, in selection.n"),
        ({"n": (5000,)}, "n from 1 to 4,096, got 5000, in selection.n"),
        ({"n": ()}, "values, each once, got none, in selection.n"),
        ({"random_rankings": -1}, "random rankings from 0 to 1,024, got -1, in selection.random_rankings"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        SelectionParameters(**given)


@pytest.mark.parametrize("name", ["selection", "taxonomy"])
@pytest.mark.parametrize(("lacking", "remedy"), [("value", "--keep with value"), ("attention", "--attention stored")])
def test_a_store_without_what_the_stage_reads_is_refused(name: str, lacking: str, remedy: str) -> None:
    offered = {"attention", "value", "all heads", "all query positions"} - {lacking}
    with pytest.raises(UsageError, match=f"got one without {lacking}, in here, stage {name}.*{remedy}"):
        require_kinds(stage(name), offered, "here")


def test_the_order_in_which_a_list_is_written_makes_no_other_run() -> None:
    one = SelectionParameters(rankings=("contribution", "attention"), n=(4, 2, 4), queries="16")
    two = SelectionParameters(n=(2, 4), queries=16)
    assert stage("selection").describe(one) == stage("selection").describe(two)
