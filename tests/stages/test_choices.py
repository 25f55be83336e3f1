"""The stage `choices` against a plain implementation, on tiny models whose tokens are characters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage.errors import CorpusError, ForeignStore, ModelError, UnknownName, UsageError
from tasks.loaded import captured_model
from tasks.models.loading import LoadedModel
from tasks.parameters import stage_parameters
from tasks.prepared import Prepared
from tasks.progress import Progress, listening
from tasks.registry import stage
from tasks.stage import prepare_stage, run_stage_shards, stage_parts_left, stage_units
from tests.oracles.contributions import Oracle
from tests.stages.choosing import (
    Row,
    plain_log_probability,
    plain_masks,
    plain_oracles,
    rows,
    run_choices,
    write,
)
from tests.tasks import made_captures
from tests.tasks.made_captures import BOS, LETTERS, Made, save_model

PLAIN = [
    {"context": "The sky is", "choices": ["blue", "a green one", "loud"], "label": 0},
    {"context": "Cats say ", "choices": ["meow", "woof"], "label": 1},
    {"context": "One, two,", "choices": ["three.", "nine"], "label": 0},
]
WINOGRANDE = {"sentence": "Ann saw Bo and _ fled.", "option1": "Ann", "option2": "Bo", "answer": "1"}
SMALL: dict[str, Any] = {"rates": [0.3], "scores": ["raw", "cw_intra", "random"], "draws": 2}


def ids_of(text: str, bos: bool = True) -> np.ndarray:
    return np.array([*([BOS] if bos else []), *(3 + LETTERS.index(letter) for letter in text)], np.int32)


def make(folder: Path, name: str = "llama", **settings: object) -> Made:
    model, text = save_model(folder / "model", name), folder / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog.\n" * 4)
    return made_captures.make(model, [text], folder / "runs", window=29, shard_tokens=80, batch_tokens=60, **settings)


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return make(tmp_path)


def loaded_of(made: Made) -> LoadedModel:
    return captured_model(Prepared.open(made.runs, made.capture))


def expected(loaded: LoadedModel, item: Row, row: Row, oracles: dict[str, dict[int, Oracle]]) -> np.ndarray:
    """Log-probabilities of the choices under the row's condition, by the plain way."""
    found = []
    for context, continuation in item["prompts"]:
        shown, whole = ids_of(context.rstrip()), ids_of(context + continuation)
        masks = {}
        if row["scope"] != "none":
            if context not in oracles:
                oracles[context] = plain_oracles(loaded, shown)
            condition = (row["scope"], row["score"], row["direction"], round(row["rate"], 6))
            masks = plain_masks(oracles[context], len(whole), *condition)
        found.append(plain_log_probability(loaded, whole, len(whole) - len(shown), masks))
    return np.array(found)


def items() -> dict[tuple[str, int], Row]:
    """(task, item) → its prompts and label, written out."""
    sky = [("The sky is", " blue"), ("The sky is", " a green one"), ("The sky is", " loud")]
    cats, numbers = [("Cats say ", "meow"), ("Cats say ", "woof")], [("One, two,", " three."), ("One, two,", " nine")]
    seen = [("Ann saw Bo and Ann", " fled."), ("Ann saw Bo and Bo", " fled.")]
    plain = [{"prompts": sky, "label": 0}, {"prompts": cats, "label": 1}, {"prompts": numbers, "label": 0}]
    return {**{("plain", i): item for i, item in enumerate(plain)}, ("winogrande", 0): {"prompts": seen, "label": 0}}


@pytest.mark.parametrize(
    ("name", "scopes"), [("llama", ["entry", "token", "row"]), ("gpt2", ["token"]), ("mistral-window", ["entry"])]
)
def test_picks_and_margins_are_those_of_the_plain_way(name: str, scopes: list[str], tmp_path: Path) -> None:
    made = make(tmp_path, name)
    files = [write(tmp_path / "plain.jsonl", *PLAIN), write(tmp_path / "w.jsonl", WINOGRANDE)]
    run_choices(made.runs, made.capture, files, scores=["raw", "cw_intra"], scopes=scopes, rates=[0.3])
    loaded, known = loaded_of(made), items()
    found = rows(made.runs)
    assert len(found) == 4 * (1 + len(scopes) * 2 * 2)  # scopes, scores, directions
    margins, oracles = set(), dict[str, dict[int, Oracle]]()
    for row in found:
        item = known[row["task"], row["item"]]
        want = expected(loaded, item, row, oracles)
        lengths = np.array([len(c) + (len(a) - len(a.rstrip())) for a, c in item["prompts"]])
        others = np.delete(want, item["label"])
        assert row["margin"] == pytest.approx(want[item["label"]] - others.max(), abs=2e-5)
        assert (row["label"], row["n_choices"]) == (item["label"], len(want))
        assert row["picked"] == want.argmax()
        assert row["picked_normalised"] == (want / lengths).argmax()
        margins.add(round(row["margin"], 4))
    assert len(margins) > len(found) / 2  # conditions do something, each its own


def test_the_clean_model_is_a_row_of_each_item_and_alone_on_request(made: Made, tmp_path: Path) -> None:
    file = write(tmp_path / "plain.jsonl", *PLAIN)
    run_choices(made.runs, made.capture, [file], scopes=["none"])
    clean = rows(made.runs)
    assert [row["item"] for row in clean] == [0, 1, 2]
    for row in clean:
        condition = {name: row[name] for name in ("scope", "reduce", "direction", "sign", "layers", "score")}
        assert set(condition.values()) == {"none"}
        assert (row["keep_first"], row["draw"], row["rate"]) == (False, 0, 0)
    run_choices(made.runs, made.capture, [file], **SMALL)
    assert [{**row, "stage_key": None} for row in rows(made.runs, "scope = 'none'")] == [
        {**row, "stage_key": None} for row in clean
    ]
    assert len(rows(made.runs)) == 3 * (1 + 2 * (2 + 2) * 2)  # scopes × (scores and draws) × directions


def test_a_mask_that_takes_nothing_leaves_the_clean_margin(made: Made, tmp_path: Path) -> None:
    """One context token and its BOS: a rate of a tenth of one candidate is none."""
    file = write(tmp_path / "short.jsonl", {"context": "a", "choices": ["b c", "c"], "label": 0})
    run_choices(
        made.runs, made.capture, [file], rates=[0.1, 1.0], scores=["vw"], scopes=["entry", "row", "layer_token"]
    )
    found = rows(made.runs)
    clean = next(row["margin"] for row in found if row["scope"] == "none")
    for row in found:
        assert (row["margin"] == pytest.approx(clean, abs=1e-6)) == (row["rate"] < 1)


def test_layers_alone_are_replayed_from_where_they_lie(made: Made, tmp_path: Path) -> None:
    file = write(tmp_path / "plain.jsonl", *PLAIN)
    chosen = {"rates": [0.5], "scores": ["raw"], "scopes": ["entry"]}
    run_choices(made.runs, made.capture, [file], layers=["all", "each", "1+2", "0-2", "2"], **chosen)
    found = rows(made.runs, "item = 0 and direction = 'comprehensiveness'")
    assert sorted(row["layers"] for row in found) == ["0", "1", "1-2", "2", "all"]
    loaded, item = loaded_of(made), items()["plain", 0]
    for row in found:
        layers = {"0": [0], "1": [1], "2": [2], "1-2": [1, 2], "all": [0, 1, 2]}[row["layers"]]
        oracles = {layer: o for layer, o in plain_oracles(loaded, ids_of("The sky is")).items() if layer in layers}
        want = []
        for context, continuation in item["prompts"]:
            whole = ids_of(context + continuation)
            masks = plain_masks(oracles, len(whole), "entry", "raw", "comprehensiveness", 0.5)
            want.append(plain_log_probability(loaded, whole, len(continuation), masks))
        assert row["margin"] == pytest.approx(want[0] - max(want[1:]), abs=2e-5)


def test_a_context_of_one_token_has_nothing_to_mask(tmp_path: Path) -> None:
    made = make(tmp_path, bos="never")
    file = write(tmp_path / "short.jsonl", {"context": "a", "choices": ["b c", "c"], "label": 0})
    scopes = ["entry", "token", "row", "layer_token"]
    run_choices(made.runs, made.capture, [file], rates=[1.0], scores=["cw_inter", "random"], scopes=scopes, draws=1)
    found = rows(made.runs)
    assert len(found) == 1 + 4 * 2 * 2
    np.testing.assert_allclose([row["margin"] for row in found], found[0]["margin"], atol=1e-6)


@pytest.mark.parametrize("name", ["qwen3_next", "gpt_oss", "lfm2", "gemma2"])
def test_gates_sinks_and_layers_without_attention(name: str, tmp_path: Path) -> None:
    made = make(tmp_path, name)
    file = write(tmp_path / "plain.jsonl", *PLAIN)
    run_choices(made.runs, made.capture, [file], rates=[0.5], scores=["cw_inter"], directions=["comprehensiveness"])
    loaded = loaded_of(made)
    for row in rows(made.runs):
        want = expected(loaded, items()["plain", row["item"]], {"scope": "none"}, {})
        clean = want[row["label"]] - np.delete(want, row["label"]).max()
        assert (row["margin"] == pytest.approx(clean, abs=1e-4)) == (row["scope"] == "none")


def test_attention_that_cannot_be_reached_is_refused_by_family(tmp_path: Path) -> None:
    made, file = make(tmp_path, "bloom"), write(tmp_path / "plain.jsonl", *PLAIN)
    with pytest.raises(ModelError, match="Keys can be dropped for all heads that share them"):
        run_choices(made.runs, made.capture, [file], scopes=["entry"], scores=["raw"], rates=[0.5])
    run_choices(made.runs, made.capture, [file], scopes=["layer_token"], scores=["raw"], rates=[0.5])
    assert len(rows(made.runs)) == 3 * (1 + 2)


def test_all_scores_and_baselines_run(made: Made, tmp_path: Path) -> None:
    file = write(tmp_path / "plain.jsonl", PLAIN[0])
    scores = ["raw", "vwon", "cw_inter", "norm", "alti", "rollout", "random"]
    run_choices(made.runs, made.capture, [file], scopes=["layer_token"], scores=scores, rates=[0.5], draws=3)
    found = rows(made.runs, "direction = 'comprehensiveness' and scope <> 'none'")
    assert sorted((row["score"], row["draw"]) for row in found) == sorted(
        [*((score, 0) for score in scores[:-1]), *(("random", draw) for draw in range(3))]
    )
    assert len({row["margin"] for row in found if row["score"] == "random"}) == 3


def test_the_same_seed_gives_the_same_and_another_other_draws(made: Made, tmp_path: Path) -> None:
    file, margins = write(tmp_path / "plain.jsonl", *PLAIN), []
    for seed, rates in ((0, [0.5]), (1, [0.5]), (0, [0.5, 0.9])):
        run_choices(made.runs, made.capture, [file], seed, scores=["random"], draws=1, rates=rates)
        margins.append([row["margin"] for row in rows(made.runs, "scope = 'entry' and round(rate, 2) = 0.5")])
    assert margins[0] != margins[1]
    assert margins[0] == pytest.approx(margins[2], abs=1e-6)


def test_items_are_capped_and_spread_over_the_shards(made: Made, tmp_path: Path) -> None:
    file = write(tmp_path / "plain.jsonl", *PLAIN)
    assert len(made.store.shards) == 3
    parameters = {"files": [str(file)], "scopes": ["none"], "items": 2}
    key = prepare_stage(made.runs, made.capture, "choices", parameters)
    assert [stage_units(made.runs, made.capture, "choices", key, [shard]) for shard in range(3)] == [1, 1, 0]
    told: list[Progress] = []
    with listening(told.append):
        run_stage_shards(made.runs, made.capture, "choices", key, [1])
    assert [(p.kind, p.unit, p.step) for p in told if p.kind == "choices" and p.step] == [("choices", "items", 1)]
    assert stage_parts_left(made.runs, made.capture, "choices", key) == [0, 2]
    run_choices(made.runs, made.capture, [file], scopes=["none"], items=2)
    assert [row["item"] for row in rows(made.runs)] == [0, 1]
    run_choices(made.runs, made.capture, [file], scopes=["none"], items=0)
    assert [row["item"] for row in rows(made.runs)] == [0, 1, 2]


def test_progress_of_a_grid_adds_up_to_the_items(made: Made, tmp_path: Path) -> None:
    file = write(tmp_path / "plain.jsonl", *PLAIN)
    told: list[Progress] = []
    with listening(told.append):
        run_choices(made.runs, made.capture, [file], layers=["all", "each"], **SMALL)
    assert sum(p.step for p in told if p.kind == "choices") == pytest.approx(3)


def test_a_context_that_does_not_fit_loses_its_beginning(made: Made, tmp_path: Path) -> None:
    long = "abcdefghij" * 8  # 64 positions
    file = write(tmp_path / "long.jsonl", {"context": long, "choices": ["k", "lmno"], "label": 0})
    key = run_choices(made.runs, made.capture, [file], scopes=["none"])
    (row,) = rows(made.runs)
    loaded, want = loaded_of(made), []
    for continuation in (" k", " lmno"):
        whole = np.concatenate([ids_of(long[-(64 - 1 - 5) :]), ids_of(continuation, bos=False)])
        want.append(plain_log_probability(loaded, whole, len(continuation), {}))
    assert row["margin"] == pytest.approx(want[0] - want[1], abs=2e-5)
    connection_rows = quality(made, key)
    assert connection_rows == {"contexts_cut": 1, "undefined_scores": 0}


def quality(made: Made, key: str) -> dict[str, int]:
    import json

    from storage.filesystem import open_runs
    from storage.warehouse import connect, run_sql
    from tasks.registry import tables

    found = run_sql(connect(open_runs(made.runs), tables()), f"select quality from stages where key = '{key}'")
    return dict(json.loads(found.column(0)[0].as_py()))


def test_the_key_is_of_the_files_bytes_and_not_of_their_place(made: Made, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir(), there.mkdir()

    def key(*files: Path) -> str:
        parameters = {"files": [str(file) for file in files], "scopes": ["none"]}
        return prepare_stage(made.runs, made.capture, "choices", parameters)

    one = key(write(here / "plain.jsonl", *PLAIN))
    assert key(write(there / "plain.jsonl", *PLAIN)) == one
    assert key(write(there / "other.jsonl", *PLAIN)) != one  # the name is the task's
    assert key(write(here / "plain.jsonl", *PLAIN[:2])) != one


def test_files_that_change_under_way_are_refused(made: Made, tmp_path: Path) -> None:
    file = write(tmp_path / "plain.jsonl", *PLAIN)
    key = prepare_stage(made.runs, made.capture, "choices", {"files": [str(file)], "scopes": ["none"]})
    write(file, *PLAIN[:2])
    with pytest.raises(CorpusError, match="the files that the stage was begun with, got files that changed since"):
        run_stage_shards(made.runs, made.capture, "choices", key, [0])


def test_a_tokenizer_that_changed_is_refused(made: Made, tmp_path: Path) -> None:
    file = write(tmp_path / "plain.jsonl", *PLAIN)
    tokenizer = tmp_path / "model" / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text() + "\n")
    with pytest.raises(ForeignStore, match="the tokenizer that was captured"):
        run_choices(made.runs, made.capture, [file], scopes=["none"])


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({}, UsageError, r"files of multiple-choice questions, got none, in choices\.files.*--set choices\.files="),
        ({"files": "a.jsonl", "items": -1}, UsageError, r"items from 1, or 0 for all, got -1, in choices\.items"),
        ({"files": "a.jsonl", "rates": "0"}, UsageError, r"rates in \(0, 1\], got 0\.0, in choices\.rates"),
        ({"files": "a.jsonl", "scopes": "none,entry"}, UnknownName, "a scope, got 'none'"),
        ({"files": "a.jsonl", "file": "b"}, UnknownName, "Did you mean 'files'"),
    ],
)
def test_parameters_that_cannot_be(given: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        stage_parameters(stage("choices"), given)


def test_files_are_given_as_text_with_commas() -> None:
    parameters = stage_parameters(stage("choices"), {"files": "a.jsonl, b.jsonl"})
    assert parameters.files == ("a.jsonl", "b.jsonl")
    assert parameters.items == 100
    assert len(list(parameters.cells())) == 2 * (5 + 4) * 2 * 3


def test_what_is_wrong_is_said_before_anything_runs(made: Made, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="not there"):
        prepare_stage(made.runs, made.capture, "choices", {"files": [str(tmp_path / "gone.jsonl")]})
    bad = write(tmp_path / "bad.jsonl", PLAIN[0], {**PLAIN[1], "label": 7})
    parameters = stage_parameters(stage("choices"), {"files": [str(bad)]})
    with pytest.raises(CorpusError, match=r"a label from the choices .* got 7.*line 2"):
        stage("choices").check_files(parameters)
    file = write(tmp_path / "plain.jsonl", *PLAIN)
    with pytest.raises(UsageError, match=r"layers with attention .*got 9, in choices\.layers"):
        run_choices(made.runs, made.capture, [file], layers=["9"], **SMALL)
