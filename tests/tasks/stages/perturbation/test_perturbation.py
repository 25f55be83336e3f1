"""Rows of the stages `perturbation` and `propagation` against the plain float64 model moved by hooks."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.capture.folder import CaptureFolder
from tasks.capture.model import captured_model
from tasks.kernels import perturbation as kernel
from tasks.models.displacement import noise_seed
from tasks.models.interventions import Displace
from tasks.models.table import FALLBACK
from tasks.stages.perturbation import grid
from tests.oracles import perturbation as oracle
from tests.oracles.displaced_model import DisplacedModel, Passed, Rule
from tests.tasks.stages.running import Ran, captured, documents_of, interrupted, run

VALUES = {"layers": "0-1,each:1", "deltas": "3", "relative_deltas": "0.3", "seeds": 1}
WIDTH_OF = {"0-1": (0, 1), "1": (1,)}


class Plain:
    """What the rows should say, from the plain model and the rules in plain loops."""

    def __init__(self, ran: Ran) -> None:
        loaded = captured_model(CaptureFolder.open(ran.made.runs, ran.made.capture))
        self.model, self.anatomy = DisplacedModel(loaded), loaded.anatomy
        self.attended = loaded.tap_method != FALLBACK
        self.documents = documents_of(ran.made)
        self.clean = {doc: self.model.passed(ids, {}) for doc, (ids, _) in self.documents.items()}
        layers = range(self.anatomy.n_layers)
        self.medians = [oracle.median_norm([passed.after[layer] for passed in self.clean.values()]) for layer in layers]

    def delta(self, row: dict[str, Any], layer: int) -> float:
        given = float(f"{row['delta']:.6g}")
        return given * self.medians[layer] if row["delta_kind"] == "relative" else given

    def passed(self, row: dict[str, Any]) -> Passed:
        ids, first = self.documents[row["doc"]][0], row["first_token"] == "include"
        rules: dict[int, Rule] = {}
        for layer in WIDTH_OF[row["layers"]]:
            displace = Displace(layer, 1.0, row["arm"], row["protocol"], first, seed=grid.noise_seed(0, row["seed"]))
            seed, delta = noise_seed(displace, row["doc"]), self.delta(row, layer)
            drawn = kernel.noise(row["arm"], len(ids), self.anatomy.d_model, seed).numpy()

            def rule(h: np.ndarray, delta: float = delta, drawn: np.ndarray = drawn) -> np.ndarray:
                return oracle.moved(h, delta, row["protocol"], row["arm"], drawn, first_token=first)

            rules[layer] = rule
        return self.model.passed(ids, rules)


def condition(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(f"{row[name]:.6g}" if name == "delta" else row[name] for name in ("doc", *grid.KEYS))


def assert_figures(plain: Plain, row: dict[str, Any], passed: Passed, tokens: list[dict[str, Any]]) -> None:
    """Of one row of `perturbation`, and of the rows of `displacement` that belong to it."""
    first, at = (0 if row["first_token"] == "include" else 1), {(t["layer"], t["position"]): t for t in tokens}
    moved, errors, n_tokens, ratios = [], [], 0, []
    for layer in WIDTH_OF[row["layers"]]:
        delta = plain.delta(row, layer)
        for t, (h, after) in enumerate(zip(passed.before[layer], passed.after[layer], strict=True)):
            norm, step = float(np.linalg.norm(h)), float(np.linalg.norm(after - h))
            if tokens:
                assert at[layer, t]["norm"] == pytest.approx(norm, rel=1e-3)
                assert at[layer, t]["displacement"] == pytest.approx(step, rel=1e-2, abs=1e-4)
            if t >= first:
                n_tokens += 1
                if row["protocol"] == "published" or norm > delta:
                    moved.append(step)
                    errors.append(abs(step / delta - 1))
                    ratios.append(norm / delta)
    assert (row["n_tokens"], row["unmoved"]) == (n_tokens, n_tokens - len(moved))
    for name, want in (("displacement_mean", moved), ("norm_ratio_max", ratios)):
        summary = np.nan if not want else float(np.mean(want)) if name == "displacement_mean" else max(want)
        assert row[name] == pytest.approx(summary, rel=1e-3, nan_ok=True)
    if row["protocol"] == "exact" and moved:
        assert row["displacement_max_error"] < 1e-4
    elif moved:
        assert row["displacement_max_error"] == pytest.approx(max(errors), rel=1e-2, abs=1e-5)
    if tokens:
        assert len(tokens) == sum(len(passed.before[layer]) for layer in WIDTH_OF[row["layers"]])


@pytest.mark.parametrize("name", ["llama", "gpt2", "falcon-7b", "lfm2"])
def test_rows_of_perturbation(name: str, tmp_path: Path) -> None:
    made = captured(tmp_path, name)
    ran = run(made, "perturbation", {**VALUES, "sampled": 1})
    plain, rows, known = Plain(ran), ran.rows("perturbation"), dict[Any, list[dict[str, Any]]]()
    for token in ran.rows("displacement"):
        known.setdefault(condition(token), []).append(token)
    assert len(plain.documents) > 1 and {key[0] for key in known} == {0}
    assert len({condition(row) for row in rows}) == len(rows) == len(plain.documents) * 2 * 2 * 2 * 2 * 2
    hurt = 0
    for row in rows:
        passed = plain.passed(row)
        assert row["nll_sum"] == pytest.approx(passed.losses.sum(), rel=1e-4)
        assert row["nll_clean_sum"] == pytest.approx(plain.documents[row["doc"]][1][1:].sum(dtype=np.float64), rel=1e-9)
        assert row["n_predicted"] == len(passed.losses)
        first = WIDTH_OF[row["layers"]][0]
        for column, one in (("entropy", passed), ("entropy_clean", plain.clean[row["doc"]])):
            want = one.entropy(first) if plain.attended else math.nan
            assert row[column] == pytest.approx(want, rel=1e-3, nan_ok=True), column
        assert_figures(plain, row, passed, known.get(condition(row), []))
        hurt += abs(row["nll_sum"] - row["nll_clean_sum"]) > 1e-2
    assert hurt > len(rows) / 2
    quality = ran.record()["quality"]
    flagged = sum(row["unmoved"] > 0.05 * row["n_tokens"] for row in rows)
    assert quality.get("flagged_rows", 0) == flagged
    assert quality.get("rows_without_entropy", 0) == sum(math.isnan(row["entropy"]) for row in rows)


@pytest.mark.parametrize("name", ["llama", "lfm2"])
def test_rows_of_propagation(name: str, tmp_path: Path) -> None:
    ran = run(captured(tmp_path, name), "propagation", VALUES)
    plain, rows = Plain(ran), ran.rows("propagation")
    n_layers, found = plain.anatomy.n_layers, dict[Any, dict[int, dict[str, Any]]]()
    for row in rows:
        found.setdefault(condition(row), {})[row["layer"]] = row
    assert sum(map(len, found.values())) == len(rows)
    for by_layer in found.values():
        row = next(iter(by_layer.values()))
        passed, clean = plain.passed(row), plain.clean[row["doc"]]
        assert set(by_layer) == set(range(WIDTH_OF[row["layers"]][0], n_layers))
        for layer, one in by_layer.items():
            apart = np.linalg.norm(passed.after[layer] - clean.after[layer], axis=1)
            assert one["distance_mean"] == pytest.approx(apart.mean(), rel=1e-3, abs=1e-5)
            assert one["distance_first_token"] == pytest.approx(apart[0], rel=1e-3, abs=1e-5)
            assert one["n_tokens"] == len(apart)


def test_rows_made_at_once_change_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table displacement, made all at once and one cell at a time."""
    made = captured(tmp_path)
    whole = run(made, "perturbation", VALUES).rows("displacement")
    monkeypatch.setattr("tasks.stages.perturbation.perturbation._ROWS", 1)
    again = run(made, "perturbation", {**VALUES, "seeds": 2}).rows("displacement")
    figures = {(condition(row), row["layer"], row["position"]): row["displacement"] for row in again}
    assert len(again) == 2 * len(whole) > 0
    assert all(figures[condition(row), row["layer"], row["position"]] == row["displacement"] for row in whole)


def test_a_tiny_delta_changes_next_to_nothing(tmp_path: Path) -> None:
    made = captured(tmp_path)
    rows = run(made, "perturbation", {"deltas": "1e-6", "relative_deltas": "", "layers": "all"}).rows("perturbation")
    assert rows and all(abs(row["nll_sum"] - row["nll_clean_sum"]) < 1e-4 for row in rows)
    assert {row["layers"] for row in rows} == {"all"}
    assert all(row["entropy"] == pytest.approx(row["entropy_clean"], rel=1e-4) for row in rows)


def test_a_delta_above_every_norm_moves_nothing_in_exact(tmp_path: Path) -> None:
    """Left alone in both arms, counted, and flagged."""
    made = captured(tmp_path)
    ran = run(made, "perturbation", {"deltas": "1e6", "relative_deltas": "", "protocols": "exact"})
    rows = ran.rows("perturbation")
    assert {row["arm"] for row in rows} == {"magnitude", "angle"}
    for row in rows:
        assert row["unmoved"] == row["n_tokens"] > 0
        assert row["nll_sum"] == pytest.approx(row["nll_clean_sum"], rel=1e-6)
        assert math.isnan(row["displacement_mean"]) and math.isnan(row["displacement_max_error"])
    assert ran.record()["quality"]["flagged_rows"] == len(rows)


def test_both_arms_move_the_same_tokens_of_a_single_layer(tmp_path: Path) -> None:
    ran = run(
        captured(tmp_path),
        "perturbation",
        {"layers": "each", "deltas": "", "relative_deltas": "0.8,1,1.1", "protocols": "exact"},
    )
    by_arm: dict[str, list[int]] = {"magnitude": [], "angle": []}
    for row in sorted(ran.rows("perturbation"), key=condition):
        by_arm[row["arm"]].append(row["unmoved"])
    assert by_arm["magnitude"] == by_arm["angle"] and len(set(by_arm["angle"])) > 1


def test_shards_and_batches_change_nothing(tmp_path: Path) -> None:
    """Nor does the order in which documents and conditions are run: noise is each one's own."""
    text = "The quick brown fox jump"
    whole, apart = (captured(tmp_path, text=text, shard_tokens=n, batch_tokens=n) for n in (26, 13))
    assert len(whole.store.shards) < len(apart.store.shards)
    for stage in ("perturbation", "propagation", "repair"):
        left, right = (run(made, stage, {"seeds": 1, "deltas": "5"}).rows(stage) for made in (whole, apart))
        order = [name for name in left[0] if name not in ("capture", "stage_key")]

        def key(row: dict[str, Any]) -> tuple[Any, ...]:
            return (*[v for v in row.values() if isinstance(v, str | int)][2:], row["delta"])

        for one, other in zip(sorted(left, key=key), sorted(right, key=key), strict=True):
            for name in order:
                want = (
                    other[name] if isinstance(other[name], str) else pytest.approx(other[name], rel=2e-5, nan_ok=True)
                )
                assert one[name] == want, (stage, name)


@pytest.mark.parametrize("stage", ["perturbation", "propagation", "repair"])
def test_an_interrupted_run_goes_on_to_the_same_bytes(stage: str, tmp_path: Path) -> None:
    values = {"seeds": 1, "layers": "each", "deltas": "5", "relative_deltas": ""}
    folders = tmp_path / "whole", tmp_path / "broken"
    whole, broken = (captured(folder, batch_tokens=13) for folder in folders)
    done = run(whole, stage, values)
    assert done.key == _surveyed(broken, stage, values)
    came = interrupted(broken, stage, done.key, steps=10, values=values)
    again = run(broken, stage, values)
    assert 0 < came < len(documents_of(broken))
    assert again.bytes(stage) == done.bytes(stage)


def _surveyed(made: Any, stage: str, values: dict[str, Any]) -> str:
    from tasks.stages.run import SURVEY, finish_stage, prepare_stage, run_stage_shards, stage_parts_left

    key = prepare_stage(made.runs, made.capture, stage, values)
    run_stage_shards(
        made.runs, made.capture, stage, key, stage_parts_left(made.runs, made.capture, stage, key, SURVEY), SURVEY
    )
    finish_stage(made.runs, made.capture, stage, key, SURVEY)
    return key
