"""What must hold between rows of the stage `masking`: rates of 1, draws, orders of execution, and conditions alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tasks.capture.folder import CaptureFolder
from tasks.capture.model import captured_model
from tasks.stages.run import finish_stage, prepare_stage, run_stage_shards
from tests.oracles.masking import PlainModel
from tests.tasks.capture.made_captures import Made
from tests.tasks.stages.running import Ran, captured, run

GRID = {"rates": "0.3", "signs": "absolute,signed", "draws": 3}
LONG = "The quick brown fox jumps over the lazy"
KEYS = ("doc", "scope", "reduce", "direction", "sign", "keep_first", "layers", "score", "draw", "rate")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Several documents, each in a shard of its own."""
    return captured(tmp_path_factory.mktemp("llama"), text=LONG, shard_tokens=13, batch_tokens=13)


@pytest.fixture(scope="module")
def ran(made: Made) -> Ran:
    return run(made, "masking", GRID)


def keyed(ran: Ran, **but: Any) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Rows by their key, in which columns of `but` are put to one value."""
    return {tuple(but.get(key, row[key]) for key in KEYS): row for row in ran.rows("masking")}


def of(ran: Ran, **columns: Any) -> dict[tuple[Any, ...], dict[str, Any]]:
    """The rows with these values, by the rest of their key."""
    rest = [key for key in KEYS if key not in columns]
    rows = [row for row in ran.rows("masking") if all(row[name] == value for name, value in columns.items())]
    assert rows
    return {tuple(row[key] for key in rest): row for row in rows}


def assert_alike(
    left: dict[tuple[Any, ...], dict[str, Any]], right: dict[tuple[Any, ...], dict[str, Any]], rel: float = 0
) -> None:
    assert left.keys() == right.keys()
    for key, row in left.items():
        assert row["nll_sum"] == pytest.approx(right[key]["nll_sum"], rel=rel, abs=0), key
        assert row["masked_fraction"] == pytest.approx(right[key]["masked_fraction"], rel=rel, abs=0), key


def test_a_rate_of_1_masks_everything(tmp_path: Path) -> None:
    """As if attention gave nothing to the queries that predict: every scope, score and direction alike."""
    ran = run(captured(tmp_path), "masking", {"rates": "1", "draws": 1})
    made = ran.made
    plain = PlainModel(captured_model(CaptureFolder.open(made.runs, made.capture)))
    wanted = {}
    for reader in (made.store.shard(shard) for shard in made.store.shards):
        for doc in reader.documents:
            ids = reader.token_ids(doc)
            mask = torch.ones(4, len(ids), len(ids), dtype=torch.bool)
            mask[:, -1] = False
            wanted[doc] = float(plain.losses(ids, dict.fromkeys(range(3), mask)).sum())
    rows = ran.rows("masking")
    assert len(rows) == len(wanted) * 2 * (6 + 6 + 6 + 9)
    for row in rows:
        assert row["masked_fraction"] == 1
        assert row["nll_sum"] == pytest.approx(wanted[row["doc"]], rel=1e-5)
        assert abs(row["nll_sum"] - row["nll_clean_sum"]) > 1


def test_a_rate_of_1_spares_the_first_token_if_told(tmp_path: Path) -> None:
    ran = run(captured(tmp_path), "masking", {"rates": "1", "draws": 1, "keep_first": "true"})
    for row in ran.rows("masking"):
        n = row["n_predicted"]  # queries 0 … T−2, of which each sees key 0
        assert row["masked_fraction"] == pytest.approx((n - 1) / (n + 1), rel=1e-6)


def test_draws_differ_and_seeds_differ(made: Made, ran: Ran) -> None:
    other = run(made, "masking", {**GRID, "scores": "random"}, seed=1)
    for scope in ("entry", "row", "token", "layer_token"):
        drawn = [
            tuple(row["nll_sum"] for row in of(one, scope=scope, score="random", draw=draw).values())
            for one in (ran, other)
            for draw in range(3)
        ]
        assert len(set(drawn)) == 6


def of_random(ran: Ran) -> dict[tuple[Any, ...], dict[str, Any]]:
    return {key: row for key, row in keyed(ran).items() if row["score"] == "random"}


def test_any_order_of_shards_gives_the_same_bytes(made: Made, ran: Ran, tmp_path: Path) -> None:
    again = captured(tmp_path, text=LONG, shard_tokens=13, batch_tokens=13)
    assert again.capture == made.capture and len(made.store.shards) == 4
    key = prepare_stage(again.runs, again.capture, "masking", GRID)
    for shard in (3, 0, 2, 1):
        run_stage_shards(again.runs, again.capture, "masking", key, [shard])
    finish_stage(again.runs, again.capture, "masking", key)
    assert Ran(again, "masking", key).bytes("masking") == ran.bytes("masking")


def test_documents_in_one_shard_have_the_rows_of_documents_apart(ran: Ran, tmp_path: Path) -> None:
    """But for the draws, whose seed names the capture, and shards are a part of what a capture is."""
    together = run(captured(tmp_path, text=LONG, shard_tokens=100, batch_tokens=50), "masking", GRID)
    assert len(together.made.store.shards) == 1
    scored = [{key: row for key, row in keyed(one).items() if row["score"] != "random"} for one in (ran, together)]
    assert_alike(scored[0], scored[1], rel=1e-6)
    drawn = [{key: row["masked_fraction"] for key, row in of_random(one).items()} for one in (ran, together)]
    entries = [{key: share for key, share in one.items() if key[1] in ("entry", "row")} for one in drawn]
    assert entries[0] == entries[1]


def test_where_padding_stands_changes_nothing(tmp_path: Path) -> None:
    left, right = (
        run(captured(tmp_path, padding=padding), "masking", {"rates": "0.3", "scores": "vw,alti"})
        for padding in ("left", "right")
    )
    assert left.made.capture != right.made.capture
    assert_alike(keyed(left), keyed(right), rel=1e-5)


def test_in_bfloat16_nothing_masked_changes_nothing(tmp_path: Path) -> None:
    made = captured(tmp_path, dtype="bfloat16", store_dtype="bfloat16")
    rows = run(made, "masking", {"rates": "0.01,0.5", "scores": "cw_intra"}).rows("masking")
    for row in rows:
        assert (row["masked_fraction"] == 0) == (row["rate"] < 0.1)
        if row["masked_fraction"] == 0:
            assert row["nll_sum"] == pytest.approx(row["nll_clean_sum"], rel=2e-3)
    assert any(abs(row["nll_sum"] - row["nll_clean_sum"]) > 1 for row in rows)


def test_a_row_does_not_depend_on_what_else_is_asked(made: Made, ran: Ran) -> None:
    few = run(made, "masking", {**GRID, "scores": "vw,alti,random", "scopes": "layer_token,entry", "draws": 2})
    whole = keyed(ran)
    assert_alike(keyed(few), {key: whole[key] for key in keyed(few)}, rel=1e-5)


def test_what_is_never_negative_ranks_alike_signed_or_not(ran: Ran) -> None:
    for score in ("raw", "vw", "vwon", "norm", "alti", "rollout", "random"):
        assert_alike(of(ran, score=score, sign="signed"), of(ran, score=score, sign="absolute"))
    for score in ("cw_intra", "cw_inter"):
        signed, absolute = (of(ran, score=score, sign=sign) for sign in ("signed", "absolute"))
        assert any(row["nll_sum"] != absolute[key]["nll_sum"] for key, row in signed.items())


def test_inside_a_row_values_rank_as_values_over_the_output(ran: Ran) -> None:
    assert_alike(of(ran, scope="row", score="vw"), of(ran, scope="row", score="vwon"))
    vw, vwon = (of(ran, scope="entry", score=score) for score in ("vw", "vwon"))
    assert any(row["nll_sum"] != vwon[key]["nll_sum"] for key, row in vw.items())


def test_sets_that_are_the_same_layers_have_one_row(made: Made, tmp_path: Path) -> None:
    """Of all three layers in two ways; and of a store of one layer, which is each and all of them."""
    values = {"scores": "raw,random", "rates": "0.3", "draws": 1}
    twice = run(made, "masking", {**values, "layers": "0-2,all"})
    assert len(keyed(twice)) == len(twice.rows("masking"))
    one = captured(tmp_path, layers="1")
    both = run(one, "masking", {**values, "layers": "all,each,1"})
    assert {row["layers"] for row in both.rows("masking")} == {"1"}
    assert len(keyed(both)) == len(both.rows("masking"))
    assert_alike(keyed(both), keyed(run(one, "masking", {**values, "layers": "1"})))


def test_sets_that_begin_at_one_layer_are_as_each_alone(made: Made) -> None:
    values = {"scores": "cw_intra", "rates": "0.3"}
    together = keyed(run(made, "masking", {**values, "layers": "0,0+2,0-1"}))
    for layers in ("0", "0+2", "0-1"):
        alone = keyed(run(made, "masking", {**values, "layers": layers}))
        assert_alike(alone, {key: together[key] for key in alone})
