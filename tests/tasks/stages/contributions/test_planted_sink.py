"""A planted anti-aligned sink, through capture, `contributions` and `sink`: the tables say what is known by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.tasks.capture import made_captures
from tests.tasks.stages.contributions.planted import A_STAR, DOCUMENTS, EPS, B, C, Known, save
from tests.tasks.stages.running import Ran, run

KNOWN = tuple(map(Known.of, DOCUMENTS))
Stage = Callable[[str], Ran]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """Each stage of one capture, done once."""
    folder = tmp_path_factory.mktemp("planted")
    model, texts = save(folder / "model"), [folder / f"{i}.txt" for i in range(len(DOCUMENTS))]
    for path, text in zip(texts, DOCUMENTS, strict=True):
        path.write_text(text)
    made = made_captures.make(model, texts, folder / "runs", window=64, device="cpu")
    values = {"contributions": {"resamples": 50}}
    done: dict[str, Ran] = {}

    def of(name: str) -> Ran:
        if name not in done:
            done[name] = run(made, name, values.get(name))
        return done[name]

    return of


def near(value: float) -> object:
    return pytest.approx(value, rel=1e-4, abs=1e-5)


def test_the_sink_rate_that_would_silence_the_head_is_inside(stage: Stage) -> None:
    rows = stage("contributions").rows("sink_geometry")
    assert len(rows) == 2 * 40
    for row in rows:
        known, i = KNOWN[row["doc"]], row["query"]
        assert row["sink_rate"] == near(known.rate[i])
        assert (row["sink_norm"], row["tail_norm"]) == (near(C), near(known.tail_norm(i)))
        assert row["cosine_sink_tail"] == near(-B / known.tail_norm(i))
        assert row["output_norm"] == near(known.output_norm(i))
        assert (row["a_star"], row["min_norm"]) == (near(known.a_star(i)), near(known.min_norm(i)))
        assert row["interior"] is True


def test_outputs_lengthen_with_the_distance_from_the_minimum(stage: Stage) -> None:
    """‖o‖² = min² + (a − a*)² ‖s − m‖²: the shortest outputs are those whose sink rate is nearest to a*."""
    rows = stage("contributions").rows("sink_geometry")
    for row in rows:
        distance = (row["sink_rate"] - row["a_star"]) ** 2 * ((B + C) ** 2 + EPS**2 / row["query"])
        assert row["output_norm"] ** 2 == near(row["min_norm"] ** 2 + distance)
    shortest = sorted(rows, key=lambda row: row["output_norm"])[:8]
    assert max(abs(row["sink_rate"] - A_STAR) for row in shortest) < 0.05
    rates = [row["sink_rate"] for row in rows]
    assert min(rates) < A_STAR - 0.25 and max(rates) > A_STAR + 0.25


def test_the_fitted_minimum_is_where_it_was_planted(stage: Stage) -> None:
    (row,) = stage("contributions").rows("sink_fit")
    assert row["n"] == 2 * 40
    assert row["a_min"] == pytest.approx(A_STAR, abs=0.03)
    assert 0 < row["curvature_lo"] <= row["curvature"] <= row["curvature_hi"]
    a = np.concatenate([known.rate[1:] for known in KNOWN])
    norm = np.concatenate([[known.output_norm(i) for i in range(1, 41)] for known in KNOWN])
    assert row["curvature"] == pytest.approx(2 * np.polyfit(a, norm, 2)[0], rel=1e-3)


def test_the_cone_of_short_outputs_is_the_sinks_doing(stage: Stage) -> None:
    """Kept, short outputs point both ways along u; without the sink's value all say what the others say."""
    rows = {(row["row_group"], row["sink"]): row for row in stage("contributions").rows("semantic_cone")}
    assert len(rows) == 4
    for (group, sink), row in rows.items():
        expected = []
        for known in KNOWN:
            queries = sorted(range(1, 41), key=known.output_norm)
            chosen = queries[:8] if group == "low_norm" else queries[8:]
            expected.append(known.mean_cosine(chosen, kept=sink == "kept"))
        assert row["mean_pairwise_cosine"] == near(float(np.mean(expected)))
        assert row["n"] == 2 * (8 if group == "low_norm" else 32)
    short = {sink: rows["low_norm", sink]["mean_pairwise_cosine"] for sink in ("kept", "zeroed")}
    assert short["kept"] < 0.3 and short["zeroed"] > 0.95


def test_without_the_sink_the_head_speaks_up_and_the_loss_rises(stage: Stage) -> None:
    rows = stage("sink").rows("sink_removal")
    assert [(row["doc"], row["layers"], row["n_predicted"]) for row in rows] == [(0, "all", 40), (1, "all", 40)]
    for row in rows:
        known = KNOWN[row["doc"]]
        clean, zeroed = known.nll_sum(kept=True), known.nll_sum(kept=False)
        assert row["nll_clean_sum"] == pytest.approx(clean, rel=1e-5)
        assert row["nll_sum"] == pytest.approx(zeroed, rel=1e-5)
        assert row["nll_sum"] - row["nll_clean_sum"] == pytest.approx(zeroed - clean, rel=1e-4)
        assert zeroed - clean > 10
