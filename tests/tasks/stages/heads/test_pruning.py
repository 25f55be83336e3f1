"""Rows of the stage `pruning`: orders by plain loops, losses by the plain float64 model without the heads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from storage.errors import IncompleteRun, UnknownName, UsageError
from tasks.capture.folder import CaptureFolder
from tasks.capture.model import captured_model
from tasks.models.interventions import ScaleHeads
from tasks.models.replay import Replayer
from tasks.stages.heads.pruning import cells_of
from tasks.stages.heads.pruning_parameters import STRATEGIES, PruningParameters
from tasks.stages.heads.pruning_survey import HeadStatistics
from tasks.stages.registry import stage
from tasks.stages.run import prepare_stage, run_stage_shards
from tests.oracles.masking import PlainModel
from tests.oracles.pruning import Head, HeadOracle
from tests.tasks.capture.made_captures import save_model
from tests.tasks.stages.running import Ran, captured, documents_of, run

ORDERED = tuple(strategy for strategy in STRATEGIES if strategy != "random")
VALUES = {"retentions": "0.9,0.5,0.2", "seeds": 2}
RETENTIONS = ("0.9", "0.5", "0.2")


def loss_without(plain: PlainModel, ids: np.ndarray, gone: list[Head], n_heads: int) -> float:
    masks = {layer: torch.zeros(n_heads, len(ids), len(ids), dtype=torch.bool) for layer, _ in gone}
    for layer, head in gone:
        masks[layer][head] = True
    return float(plain.losses(ids, masks).sum())


def by_key(ran: Ran) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Rows by document, strategy, retention as text, and seed."""
    rows = ran.rows("pruning")
    found = {(r["doc"], r["strategy"], f"{r['retention']:.6g}", r["seed"]): r for r in rows}
    assert len(found) == len(rows)
    return found


def assert_rows(ran: Ran, strategies: tuple[str, ...] = ORDERED) -> HeadOracle:
    """Rows of these strategies at each retention, with the heads gone that plain loops say."""
    plain = PlainModel(captured_model(CaptureFolder.open(ran.made.runs, ran.made.capture)))
    oracle, by_doc, rows = HeadOracle(ran.made.store), documents_of(ran.made), by_key(ran)
    n_heads, known = ran.made.store.shape.n_heads, dict[Any, float]()
    for strategy in strategies:
        order = oracle.order(strategy)
        for retention in RETENTIONS:
            gone = oracle.gone(order, retention)
            for doc, (ids, nll) in by_doc.items():
                row, named = rows[doc, strategy, retention, 0], (doc, frozenset(gone))
                if named not in known:
                    known[named] = loss_without(plain, ids, gone, n_heads)
                assert row["nll_sum"] == pytest.approx(known[named], rel=1e-5), (strategy, retention, doc)
                assert row["nll_clean_sum"] == pytest.approx(nll[1:].sum(dtype=np.float64), rel=1e-12)
                assert (row["heads_kept"], row["n_predicted"]) == (oracle.kept(retention), len(ids) - 1)
    return oracle


@pytest.mark.parametrize(
    ("name", "unranked"), [("llama", {}), ("gpt2", {}), ("gemma2", {"heads_unranked_by_f_score": 8})]
)
def test_orders_and_losses(name: str, unranked: dict[str, int], tmp_path: Path) -> None:
    """Two layers of Gemma 2 have windows in which no query has more than eight keys."""
    ran = run(captured(tmp_path, name), "pruning", VALUES)
    oracle = assert_rows(ran)
    rows, by_doc = by_key(ran), documents_of(ran.made)
    assert len(rows) == len(by_doc) * len(RETENTIONS) * (len(ORDERED) + 2)
    assert len({tuple(oracle.order(strategy)) for strategy in ORDERED}) > 4  # they do differ
    assert ran.record()["quality"] == unranked and ran.record()["status"] == "done"


@pytest.mark.parametrize(("name", "layers"), [("lfm2", None), ("qwen3_next", None), ("gpt_oss", "1-2")])
def test_layers_that_the_store_keeps(name: str, layers: str | None, tmp_path: Path) -> None:
    """Heads of hybrids' attention alone, gated heads, learned sinks, and chosen layers."""
    some = ("taxonomy", "entropy_high", "contribution", "weight_magnitude")
    strategies = ",".join(some)
    ran = run(captured(tmp_path, name, layers=layers), "pruning", {**VALUES, "strategies": strategies})
    assert {layer for layer, _ in assert_rows(ran, some).heads} == set(ran.made.store.shape.kept_layers)


def test_random_orders_are_drawn_by_the_seed_and_nested(tmp_path: Path) -> None:
    """One order in all shards; other seeds give others; what is gone at 0.9 is gone at 0.5 too."""
    made = captured(tmp_path, shard_tokens=13, batch_tokens=13, text="The quick brown fox " * 2)
    values = {"strategies": "random", "retentions": "0.9,0.5", "seeds": 3}
    ran, again, other = (run(made, "pruning", values, seed) for seed in (0, 0, 1))
    assert ran.bytes("pruning") == again.bytes("pruning") and ran.rows("pruning") != other.rows("pruning")
    parameters = PruningParameters(("random",), (0.9, 0.5), 3)
    cells = cells_of(made.store, parameters, HeadStatistics({}), 0)
    gone = [
        {(i.layer, head) for i in cell.condition if isinstance(i, ScaleHeads) for head in i.heads} for cell in cells
    ]
    assert [len(heads) for heads in gone] == [1, 6] * 3
    assert (
        all(few < many for few, many in zip(gone[::2], gone[1::2], strict=True)) and len(set(map(frozenset, gone))) > 3
    )
    plain = PlainModel(captured_model(CaptureFolder.open(made.runs, made.capture)))
    rows, by_doc = by_key(ran), documents_of(made)
    assert len(made.store.shards) > 1
    for cell, heads in zip(cells, gone, strict=True):
        for doc, (ids, _) in by_doc.items():
            loss = loss_without(plain, ids, sorted(heads), made.store.shape.n_heads)
            assert rows[doc, "random", f"{cell.retention:.6g}", cell.seed]["nll_sum"] == pytest.approx(loss, rel=1e-5)


def test_the_same_heads_run_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Conditions that leave the same heads are one pass a document; where all heads stay nothing changes."""
    passes: list[tuple[int, int]] = []
    scored = Replayer._scored

    def counted(self: Replayer, layer: int, rows: Any, conditions: Any, *more: Any) -> Any:
        passes.extend((layer, start.document) for start, _ in rows)
        return scored(self, layer, rows, conditions, *more)

    monkeypatch.setattr(Replayer, "_scored", counted)
    made = captured(tmp_path)
    strategies = "entropy_high,entropy_low,weight_magnitude"
    ran = run(made, "pruning", {"strategies": strategies, "retentions": "1,0.95"})
    rows, oracle = by_key(ran), HeadOracle(made.store)
    lost = [oracle.order(strategy)[0] for strategy in strategies.split(",")]
    assert oracle.kept("0.95") == len(oracle.heads)  # ⌈0.95 · 12⌉: nothing goes
    assert len(passes) == len(documents_of(made)) and {layer for layer, _ in passes} == {2}
    assert all(row["nll_sum"] == pytest.approx(row["nll_clean_sum"], rel=1e-6) for row in rows.values())
    passes.clear()
    run(made, "pruning", {"strategies": strategies, "retentions": "0.9"})
    assert len(passes) == len(set(lost)) * len(documents_of(made))
    assert {layer for layer, _ in passes} == {layer for layer, _ in lost}  # each from the layer that loses one


def test_heads_that_write_nothing_go_first_and_are_counted(tmp_path: Path) -> None:
    """Layer 1 without values: no winner, no direction; its heads stand before all others, in their order."""
    save_model(tmp_path / "model")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    with torch.no_grad():
        model.model.layers[1].self_attn.v_proj.weight.zero_()
    model.save_pretrained(tmp_path / "model")
    ran = run(captured(tmp_path), "pruning", {**VALUES, "strategies": "taxonomy,contribution"})
    oracle = assert_rows(ran, ("taxonomy", "contribution"))
    n = ran.made.store.shape.n_heads
    assert oracle.order("taxonomy")[:n] == oracle.order("contribution")[:n] == [(1, head) for head in range(n)]
    assert ran.record()["quality"] == {"heads_unranked_by_taxonomy": n, "heads_unranked_by_contribution": n}


def test_the_paper_s_orders_are_the_default() -> None:
    assert len(STRATEGIES) == 12 and STRATEGIES[0] == "taxonomy"
    assert [s for s in STRATEGIES if s.startswith("taxonomy_")] == [
        "taxonomy_reset_retriever_mixer",
        "taxonomy_mixer_reset_retriever",
        "taxonomy_mixer_retriever_reset",
        "taxonomy_retriever_reset_mixer",
        "taxonomy_retriever_mixer_reset",
    ]
    assert PruningParameters().retentions == (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)
    assert stage("pruning").on_request and stage("pruning").surveys


@pytest.mark.parametrize(
    ("values", "error", "told"),
    [
        ({"retentions": "0.5,0"}, UsageError, r"retentions in \(0, 1\], got 0.0, in pruning.retentions"),
        ({"retentions": "1,0.5,0.50000001"}, UsageError, "retentions that differ in float32"),
        ({"retentions": "1.5"}, UsageError, r"retentions in \(0, 1\], got 1.5"),
        ({"retentions": "nan"}, UsageError, r"retentions in \(0, 1\], got nan"),
        ({"retentions": "0.5,0.50"}, UsageError, "values, each once, got 0.5, 0.5, of which some are twice"),
        ({"strategies": ""}, UsageError, "each once, got none, in pruning.strategies"),
        ({"strategies": "entropy"}, UnknownName, "the name of a strategy, got 'entropy', .*Did you mean 'entropy_"),
        ({"strategies": "random,taxonmy"}, UnknownName, "got 'taxonmy', .*Did you mean 'taxonomy'"),
        ({"seeds": 0}, UsageError, "seeds from 1 to 1,000, got 0, in pruning.seeds"),
        ({"seeds": 1001}, UsageError, "seeds from 1 to 1,000, got 1001"),
        ({"retention": "0.5"}, UnknownName, "Did you mean 'retentions'"),
    ],
)
def test_what_cannot_be_is_refused(values: dict[str, Any], error: type[Exception], told: str, tmp_path: Path) -> None:
    made = captured(tmp_path, text="abc")
    with pytest.raises(error, match=told):
        prepare_stage(made.runs, made.capture, "pruning", values)


def test_windows_too_short_to_select_eight_keys(tmp_path: Path) -> None:
    made = captured(tmp_path, window=8)
    told = "heads of which what f_score ranks by is defined, got none.*Leave f_score out of pruning.strategies"
    with pytest.raises(UsageError, match=told):
        run(made, "pruning", {"strategies": "entropy_low,f_score"})
    assert run(made, "pruning", {"strategies": "entropy_low"}).record()["status"] == "done"


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"attention": "none"}, r"one without attention.*--attention stored or rebuilt"),
        ({"keep": "residual"}, r"one without value.*--keep with value"),
        ({"keep": "value"}, r"one without residual.*--keep with residual"),
        ({"heads": "0-1"}, r"one without .*no --heads"),
    ],
)
def test_a_store_without_what_is_read_is_refused(settings: dict[str, Any], told: str, tmp_path: Path) -> None:
    made = captured(tmp_path, **settings)
    with pytest.raises(UsageError, match=told):
        prepare_stage(made.runs, made.capture, "pruning", {})


def test_no_shard_has_rows_before_the_survey(tmp_path: Path) -> None:
    made = captured(tmp_path)
    key = prepare_stage(made.runs, made.capture, "pruning", VALUES)
    with pytest.raises(IncompleteRun, match="the survey of every shard of stage pruning, got 1 of 1 missing"):
        run_stage_shards(made.runs, made.capture, "pruning", key, [0])
