"""The stage `taxonomy`: its rows against plain loops, from a store in memory."""

from __future__ import annotations

from collections import Counter

import pytest

from tasks.kernels.taxonomy import CLASSES, WINNERS
from tasks.stages.registry import stage
from tests.oracles.selection import Oracle
from tests.tasks.stages.made_store import MemoryStore, Run, run_stage


@pytest.fixture(scope="module", params=[True, False], ids=["causal", "encoder"])
def store(request: pytest.FixtureRequest) -> MemoryStore:
    made = MemoryStore(lengths=(13, 1, 2, 7), causal=request.param)
    made.layers[0][0].attention[1, 6] = 0
    return made


def run(store: MemoryStore, *shards: tuple[int, ...]) -> Run:
    return run_stage(store, [store.shard(*s) for s in shards], stage("taxonomy").parameters(), name="taxonomy")


@pytest.fixture(scope="module")
def done(store: MemoryStore) -> Run:
    return run(store, (0, 1), (2, 3))


def test_classes_and_shares_are_those_of_plain_loops(store: MemoryStore, done: Run) -> None:
    rows = done.rows.rows("taxonomy", "layer", "head", "rule")
    assert len(rows) == 2 * 4 * 3
    for layer, documents in enumerate(store.layers):
        made = [Oracle(x.attention.numpy(), x.value.numpy(), x.window, x.causal) for x in documents.values()]
        for h in range(4):
            every = Counter(o.winner(h, i) for o in made for i in range(1, o.T))
            final = Counter(o.winner(h, o.T - 1) for o in made if o.T > 1)
            for rule, counts in (("plurality", every), ("majority", every), ("final_query", final)):
                row, counted = rows[layer, h, rule], [counts[w] for w in WINNERS]
                assert row["n"] == sum(counted)
                assert [row[f"share_{w}"] for w in WINNERS] == pytest.approx([c / row["n"] for c in counted])
                ordered = sorted(counted)
                assert row["margin"] == pytest.approx((ordered[2] - ordered[1]) / row["n"], abs=1e-7)
                best = CLASSES[counted.index(max(counted))]
                assert row["class"] == ("reset" if rule == "majority" and 2 * max(counted) <= row["n"] else best)
                assert 0 <= row["agreement_halves"] <= 1
    assert done.quality == {"queries_without_a_winner": 1, "heads_without_a_class": 0}


def test_shards_make_no_difference(store: MemoryStore, done: Run) -> None:
    together = run(store, (0, 1, 2, 3))
    assert together.rows.tables["taxonomy"].to_pylist() == done.rows.tables["taxonomy"].to_pylist()


def test_a_capture_of_single_tokens_has_no_classes() -> None:
    done = run(MemoryStore(lengths=(1,)), (0,))
    assert done.rows.tables["taxonomy"].num_rows == 0
    assert done.quality["heads_without_a_class"] == 2 * 4 * 3
