"""What a run tells of masking, the sink and the classes of heads: from tables whose figures are known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import duckdb
import pytest

from flows.summary import _left_out_lines
from tasks.stages.faithfulness import summary as faithfulness
from tasks.stages.faithfulness.summary import choices_lines, masking_lines, sink_lines
from tasks.stages.heads import summary as heads
from tasks.stages.heads.summary import head_ablation_lines, pruning_lines, selection_lines, taxonomy_lines
from tasks.stages.perturbation import minimal_pairs_summary as minimal_pairs
from tasks.stages.perturbation.minimal_pairs_summary import minimal_pairs_lines
from tasks.stages.probes import summary as probes
from tasks.stages.probes.summary import probes_lines

FAMILY = {"scope": "entry", "reduce": "none", "direction": "comprehensiveness"}
FAMILY |= {"sign": "absolute", "keep_first": False, "layers": "all"}


class Answer:
    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self._rows = rows

    def to_pylist(self) -> list[dict[str, Any]]:
        return self._rows


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[dict[str, Any]]]:
    """What each named query answers."""
    known: dict[str, list[dict[str, Any]]] = {}

    def query(_connection: Any, name: str, _params: Mapping[str, Any]) -> Answer:
        return Answer(known[name])

    for module in (faithfulness, heads, minimal_pairs, probes):
        monkeypatch.setattr(module, "query", query)
    return known


CONNECTION: Any = duckdb


def hierarchy(**shares: float | None) -> list[dict[str, Any]]:
    """The four scores of the published order, each more faithful than the one before."""
    return [
        {
            **FAMILY,
            "score": score,
            "nll_area": 1.0 + at,
            "faithfulness_rank": 4 - at,
            "beats_previous_share": shares.get(score),
        }
        for at, score in enumerate(("raw", "vw", "vwon", "cw_intra"))
    ]


@pytest.mark.parametrize(
    ("shares", "told"),
    [
        ({"vw": 1.0, "vwon": 0.99, "cw_intra": 1.0}, "holds"),
        ({"vw": 1.0, "vwon": 0.0, "cw_intra": 1.0}, "broken at vwon"),
        ({"vw": 1.0, "vwon": 0.4, "cw_intra": 1.0}, "not told apart by these documents"),
    ],
)
def test_the_published_order_is_told(
    answers: dict[str, list[dict[str, Any]]], shares: dict[str, float], told: str
) -> None:
    answers["score_hierarchy"] = hierarchy(**shares)
    (line,) = masking_lines(CONNECTION, "a")
    assert "highest by entry" in line
    assert "cw_intra 4.000, vwon 3.000, vw 2.000, raw 1.000 nats a token, mean over rates" in line
    assert line.endswith(f"(published order raw < vw < vwon < cw: {told}).")


def test_nothing_is_said_of_an_order_that_was_not_run(answers: dict[str, list[dict[str, Any]]]) -> None:
    answers["score_hierarchy"] = hierarchy(vw=1.0, vwon=1.0, cw_intra=1.0)[:2]
    (line,) = masking_lines(CONNECTION, "a")
    assert "published" not in line
    answers["score_hierarchy"] = [{**row, "layers": "3"} for row in hierarchy(vw=1.0)]
    assert list(masking_lines(CONNECTION, "a")) == []


def test_the_layer_that_needs_the_sink_most_is_named(answers: dict[str, list[dict[str, Any]]]) -> None:
    changes = {"0": 0.1, "1": -0.4, "all": 0.25}
    answers["sink_removal_effect"] = [
        {"layers": layers, "nll_change": change, "nll_change_lo": change - 0.1, "nll_change_hi": change + 0.1}
        for layers, change in changes.items()
    ]
    (line,) = sink_lines(CONNECTION, "a")
    assert "+0.250 nats a token (95 % interval +0.150 to +0.350)" in line
    assert line.endswith("; alone most in layer 1, -0.400 (95 % interval -0.500 to -0.300).")


def test_classes_and_accuracies_are_shares(answers: dict[str, list[dict[str, Any]]]) -> None:
    answers["head_classes"] = [
        {"rule": "plurality", "class": "retriever", "share": 0.25},
        {"rule": "plurality", "class": "mixer", "share": 0.75},
        {"rule": "majority", "class": "mixer", "share": 1.0},
    ]
    (line,) = taxonomy_lines(CONNECTION, "a")
    assert line.endswith("Retriever (its own token) 25%, Mixer (the first token) 75%.")
    clean = {"task": "boolq", "accuracy": 0.7, "accuracy_lo": 0.5, "accuracy_hi": 0.8, "n_items": 20, "chance": 0.5}
    masked = {"accuracy_change": -0.2, "direction": "sufficiency", "rate": 0.3, "score": "raw"}
    answers["choice_accuracy"] = [{**clean, "majority_share": 0.6}, {**clean, **masked, "accuracy": 0.5}]
    (line,) = choices_lines(CONNECTION, "a")
    assert "boolq: 70% of 20 items right" in line
    assert "chance 50%, the commonest label 60%" in line
    assert line.endswith("50% with the 30% that raw ranks lowest masked.")


def test_selected_keys_are_set_beside_random_ones(answers: dict[str, list[dict[str, Any]]]) -> None:
    kind = {"ranking": "contribution", "distance": "euclidean", "sink": "included", "f_mean_drawn": 0.75}
    answers["separability"] = [
        {**kind, "n": 2, "f_mean": 0.5, "random_f_mean": 0.25},
        {**kind, "n": 4, "f_mean": 0.7, "random_f_mean": 0.25},
        {**kind, "sink": "excluded", "n": 8, "f_mean": 0.8, "random_f_mean": None},
        {**kind, "distance": "cosine", "n": 16, "f_mean": 0.9, "random_f_mean": 0.1},
    ]
    (line,) = selection_lines(CONNECTION, "a")
    assert "the first token among them 0.70 at N = 4 (random keys 0.25 where it is 0.75)" in line
    assert "without the first token 0.80 at N = 8 (published" in line and "0.90" not in line


def test_the_heads_that_cost_most_are_named(answers: dict[str, list[dict[str, Any]]]) -> None:
    changes = [(3, 1, 0.5, True), (0, 2, 0.25, True), (1, 0, 0.0, False), (2, 2, -0.1, False), (2, 3, None, False)]
    answers["critical_heads"] = [
        {
            "layer": layer,
            "head": head,
            "nll_change": change,
            "critical": critical,
            "class": ("mixer", "reset")[head % 2],
        }
        for layer, head, change, critical in changes
    ]
    (line,) = head_ablation_lines(CONNECTION, "a")
    assert "heads stand out in their class (published" in line
    assert "layer 3 head 1, +0.500, layer 0 head 2, +0.250, layer 1 head 0, +0.000 nats a token; 2 of 5 heads" in line
    for only, told in (("reset", "in their class, which is all heads: each is a Reset ("), (None, "among all heads, ")):
        answers["critical_heads"] = [{**row, "class": only} for row in answers["critical_heads"]]
        (line,) = head_ablation_lines(CONNECTION, "a")
        assert f"heads stand out {told}" in line


def test_pruning_is_told_at_half_of_the_heads(answers: dict[str, list[dict[str, Any]]]) -> None:
    costs = {("f_score", 0.5): 0.1, ("random", 0.5): 0.6, ("entropy_low", 0.5): 2.0, ("f_score", 0.2): 9.0}
    answers["pruning_curve"] = [
        {"strategy": strategy, "retention": retention, "nll_change": cost}
        for (strategy, retention), cost in costs.items()
    ]
    answers["head_classes"] = [{"rule": "plurality", "class": "reset", "share": 1.0}]
    (line,) = pruning_lines(CONNECTION, "a")
    assert line.startswith("With 50% of the heads kept")
    assert line.endswith("least by f_score, +0.100 nats a token; most by entropy_low, +2.000; random heads +0.600.")
    answers["pruning_curve"] = []
    assert list(pruning_lines(CONNECTION, "a")) == []


def test_an_order_by_classes_where_there_is_one_class_is_named(answers: dict[str, list[dict[str, Any]]]) -> None:
    costs = {"taxonomy": 0.1, "random": 0.6}
    answers["pruning_curve"] = [{"strategy": s, "retention": 0.5, "nll_change": cost} for s, cost in costs.items()]
    answers["head_classes"] = [
        {"rule": "majority", "class": "mixer", "share": 1.0},
        {"rule": "plurality", "class": "mixer", "share": 0.0},
        {"rule": "plurality", "class": "reset", "share": 1.0},
    ]
    _, line = pruning_lines(CONNECTION, "a")
    assert line.startswith("All heads are Resets, so taxonomy orders them by output norm alone. Norms grow")
    answers["head_classes"][2]["share"] = 0.9
    assert len(list(pruning_lines(CONNECTION, "a"))) == 1


def test_pairs_are_told_clean_and_by_arm(answers: dict[str, list[dict[str, Any]]]) -> None:
    words = {"protocol": "exact", "pair_noise": "shared", "delta_kind": "absolute", "layers": "10-19"}
    clean = {"arm": "none", "accuracy": 0.9, "accuracy_lo": 0.83, "accuracy_hi": 0.94, "n_pairs": 100}
    apart = {"angle_less_magnitude": 0.2, "angle_less_magnitude_lo": 0.1, "angle_less_magnitude_hi": 0.3}
    moved = {**words, "first_token": "exclude", "delta": 5.0}
    answers["pair_accuracy"] = [
        {**clean, "first_scored": False},
        {**moved, "arm": "magnitude", "accuracy": 0.6, **apart},
        {**moved, "arm": "angle", "accuracy": 0.8, **dict.fromkeys(apart)},
    ]
    first, second = minimal_pairs_lines(CONNECTION, "a")
    assert first == (
        "Minimal pairs: 90% of 100 right (95 % interval 83% to 94%; chance 50%), without the first token, which "
        "nothing predicts."
    )
    assert "layers 10-19 by absolute δ (exact, shared noise, first token left alone), magnitude / angle:" in second
    assert second.endswith("δ 5 60% / 80% (angle less magnitude +20 points, 95 % interval +10 to +30).")
    others = [{**moved, "arm": "angle", "accuracy": 0.8, **dict.fromkeys(apart), "layers": str(n)} for n in range(6)]
    answers["pair_accuracy"] = others
    lines = list(minimal_pairs_lines(CONNECTION, "a"))
    assert len(lines) == 5
    assert lines[0].endswith("magnitude / angle: δ 5 – / 80%.")
    assert lines[-1] == "2 more ways of moving are in the query pair_accuracy."


def test_probes_are_told_at_their_best_layer(answers: dict[str, list[dict[str, Any]]]) -> None:
    base = {"score_majority": 0.2, "score_lo": 0.7, "score_hi": 0.8, "score_published": 0.816, "metric": "accuracy"}
    answers["probe_scores"] = [
        {**base, "target": "pos", "feature": "direction", "layer": layer, "score": score}
        for layer, score in enumerate((0.6, 0.75, 0.7))
    ]
    answers["probe_scores"].append(
        {
            **base,
            "target": "depth",
            "feature": "direction",
            "layer": 1,
            "score": 0.4,
            "metric": "r2",
            "score_lo": None,
            "score_majority": -0.01,
        }
    )
    pos, depth = probes_lines(CONNECTION, "a")
    assert pos == (
        "Parts of speech: from the direction 75.0% at layer 1 (95 % interval 70.0% to 80.0%; published 81.6%); always "
        "the same answer 20.0% (layers chosen by these same test scores, so the best of many is a little high)."
    )
    assert depth.startswith(
        "Depths in the tree: from the direction R² 0.40 at layer 1; always the same answer R² -0.01 ("
    )


def test_what_a_stage_left_out_is_told() -> None:
    with duckdb.connect() as connection:
        connection.execute("create table stages (capture varchar, stage varchar, status varchar, quality varchar)")
        rows = [
            ("a", "selection", "done", '{"rows_left_out": 21888, "nan_sink_statistics": 0}'),
            ("a", "selection", "stale", '{"rows_left_out": 1}'),
            ("a", "sink", "done", None),
            ("b", "pod", "done", '{"documents_of_other_lengths": 3}'),
        ]
        connection.executemany("insert into stages values (?, ?, ?, ?)", rows)
        told = list(_left_out_lines(connection, "a", ["selection", "sink"]))
        assert told == ["Left out or not defined, counted in stages.quality: selection rows_left_out 21,888."]
        assert not list(_left_out_lines(connection, "b", ["selection"]))
