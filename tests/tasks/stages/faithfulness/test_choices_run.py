"""The stage `choices` as a run: shards, progress, key and quality, and what is refused before anything runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage.errors import CorpusError, ForeignStore, UnknownName, UsageError
from storage.filesystem import open_runs
from storage.warehouse import connect, run_sql
from tasks.progress import Progress, listening
from tasks.stages.parameters import stage_parameters
from tasks.stages.registry import stage, tables
from tasks.stages.run import prepare_stage, run_stage_shards, stage_parts_left, stage_units
from tests.tasks.capture.made_captures import Made
from tests.tasks.stages.faithfulness.choosing import (
    PLAIN,
    SMALL,
    WINOGRANDE,
    ids_of,
    loaded_of,
    make,
    plain_log_probability,
    rows,
    run_choices,
    write,
)


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return make(tmp_path)


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
    assert connection_rows == {"contexts_cut": 1, "items_alike": 0, "undefined_scores": 0}


def test_items_with_choices_that_are_the_same_are_left_out_and_counted(made: Made, tmp_path: Path) -> None:
    """Whichever of them is the label; the other items keep their numbers, and progress counts all."""
    same = {"context": "Cats say", "choices": ["meow", "meow"], "label": 1}
    two = {"context": "Cats say", "choices": ["meow", "moo", " meow"], "label": 1}
    options = {**WINOGRANDE, "option2": "Ann "}
    mmlu = {"question": "Which?", "choices": ["a", "a"], "answer": 1}
    files = [write(tmp_path / "plain.jsonl", same, PLAIN[0], two, PLAIN[1])]
    files += [write(tmp_path / "w.jsonl", WINOGRANDE, options), write(tmp_path / "m.jsonl", mmlu)]
    told: list[Progress] = []
    with listening(told.append):
        key = run_choices(made.runs, made.capture, files, scopes=["none"])
    found = [(row["task"], row["item"]) for row in rows(made.runs)]
    assert found == [("mmlu", 0), ("plain", 1), ("plain", 3), ("winogrande", 0)]
    assert quality(made, key)["items_alike"] == 3
    assert sum(p.step for p in told if p.kind == "choices") == pytest.approx(7)
    alone = write(tmp_path / "alone.jsonl", same, two)
    parameters = stage_parameters(stage("choices"), {"files": [str(alone)]})
    with pytest.raises(
        CorpusError, match=r"differ from one another, got 2 with choices that are the same, in .*line 1"
    ):
        stage("choices").check_files(parameters)


def test_a_choice_that_does_not_fit_is_refused_before_the_run_takes_an_older_ones_place(
    made: Made, tmp_path: Path
) -> None:
    key = run_choices(made.runs, made.capture, [write(tmp_path / "plain.jsonl", *PLAIN)], scopes=["none"])
    long = write(tmp_path / "long.jsonl", PLAIN[0], {"context": "a", "choices": ["k", "lm" * 40], "label": 0})
    for _ in range(2):  # the files were read once before
        with pytest.raises(CorpusError, match=r"fewer tokens than the model's 64 positions, got 81 .*line 2"):
            prepare_stage(made.runs, made.capture, "choices", {"files": [str(long)], "scopes": ["none"]})
    found = run_sql(connect(open_runs(made.runs), tables()), "select key from stages where stage = 'choices'")
    assert found.column(0).to_pylist() == [key]
    assert len(rows(made.runs)) == len(PLAIN)


def quality(made: Made, key: str) -> dict[str, int]:
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
        ({"files": "a.jsonl", "items": -1}, UsageError, r"items of at least 0, got -1, in choices\.items"),
        ({"files": "a.jsonl", "rates": "0"}, UsageError, r"rates in \(0, 1\], got 0\.0, in choices\.rates"),
        ({"files": "a.jsonl", "scopes": "none,entry"}, UnknownName, "a scope beside others, got 'none'"),
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
