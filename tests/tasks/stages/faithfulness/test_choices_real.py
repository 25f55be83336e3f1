"""The stage `choices` on stories260K and real questions, against transformers; interrupted, and gone on with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tasks.corpora.choices import read_questions, task_files
from tasks.progress import Progress, listening
from tasks.stages.faithfulness import choices
from tasks.stages.faithfulness.choices_passes import ChoicePasses
from tasks.stages.run import prepare_stage, run_stage_shards, stage_parts_left
from tests.tasks.capture import made_captures
from tests.tasks.capture.made_captures import Made
from tests.tasks.stages.faithfulness.choosing import Row, rows, run_choices

FILES = ("mmlu/validation.jsonl.gz", "winogrande/dev.jsonl", "boolq/dev.jsonl")


@pytest.fixture(scope="module")
def files(fixtures: Path) -> list[Path]:
    return [fixtures / "data" / name for name in FILES]


@pytest.fixture(scope="module")
def made(fixtures: Path, tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("stories")
    (folder / "text.txt").write_text("Once upon a time there was a cat. It sat on a mat and slept.\n" * 3)
    model = fixtures / "models" / "stories260K"
    return made_captures.make(model, [folder / "text.txt"], folder / "runs", window=24, shard_tokens=30)


def plain_margins(made: Made, model: Path, files: list[Path], items: int) -> dict[tuple[str, int], float]:
    """By transformers alone: its tokenizer, its model, its logits."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    network: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    limit, found = network.config.max_position_embeddings, {}
    for question in read_questions(task_files([str(file) for file in files]), items):
        scores = []
        longest = max(len(tokenizer(c + s).input_ids) - len(tokenizer(c).input_ids) for c, s in question.prompts)
        for context, continuation in question.prompts:
            shown, whole = tokenizer(context).input_ids, tokenizer(context + continuation).input_ids
            scored = whole[len(shown) :]
            kept = [shown[0], *shown[1:][-(limit - 1 - longest) :]]  # the BOS token stays
            with torch.inference_mode():
                logs = network(torch.tensor([[*kept, *scored]])).logits[0].double().log_softmax(-1)
            scores.append(sum(float(logs[len(kept) - 1 + i, token]) for i, token in enumerate(scored)))
        others = np.delete(scores, question.label)
        found[question.task, question.item] = scores[question.label] - others.max()
    return found


def test_clean_margins_are_those_of_transformers(made: Made, files: list[Path], fixtures: Path) -> None:
    run_choices(made.runs, made.capture, files, scopes=["none"], items=4)
    found = {(row["task"], row["item"]): row["margin"] for row in rows(made.runs)}
    want = plain_margins(made, fixtures / "models" / "stories260K", files, 4)
    assert found.keys() == want.keys()
    assert len(found) == 12
    for key, margin in found.items():
        assert margin == pytest.approx(want[key], abs=1e-4), key


@pytest.fixture
def stopping(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Lets the process stop before the item of that number, and counts items of a piece of work one by one."""
    monkeypatch.setattr(choices, "_PASSES", 1)
    whole = ChoicePasses.log_probabilities
    done = 0

    def at(stop: int) -> None:
        def one(self: ChoicePasses, *given: Any) -> Any:
            nonlocal done
            if done == stop:
                raise KeyboardInterrupt
            done += 1
            return whole(self, *given)

        monkeypatch.setattr(ChoicePasses, "log_probabilities", one)

    return at


def test_an_interrupted_shard_goes_on_where_it_was(
    made: Made, files: list[Path], stopping: Callable[[int], None]
) -> None:
    chosen = {"rates": [0.3], "scores": ["cw_intra"], "scopes": ["token"], "items": 10}
    run_choices(made.runs, made.capture, files[1:2], seed=1, **chosen)
    whole = [without_key(row) for row in rows(made.runs)]
    given = {"files": [str(files[1])], **chosen}
    key = prepare_stage(made.runs, made.capture, "choices", given, 2)
    left = stage_parts_left(made.runs, made.capture, "choices", key)
    assert len(left) == 4  # shards, the first of three items
    stopping(2)
    with pytest.raises(KeyboardInterrupt):
        run_stage_shards(made.runs, made.capture, "choices", key, left)
    stopping(-1)
    told: list[Progress] = []
    with listening(told.append):
        run_choices(made.runs, made.capture, files[1:2], seed=2, **chosen)
    assert sum(p.step for p in told if p.kind == "choices") == pytest.approx(10)
    assert sum(1 for p in told if p.kind == "choices" and p.step == 1) == 2  # what was kept
    assert [without_key(row) for row in rows(made.runs)] == whole


def without_key(row: Row) -> Row:
    return {name: value for name, value in row.items() if name != "stage_key"}
