"""Multiple-choice files: each layout's prompts, and what is wrong with a line by name."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import zstandard

from storage.errors import CorpusError
from tasks.corpora.choices import Question, read_questions, task_files

MMLU = {"question": "Two and two?", "subject": "high_school_maths", "choices": ["3", "4", "5", "6"], "answer": 1}
WINOGRANDE = {"sentence": "Ann thanked Bo because _ was kind.", "option1": "Ann", "option2": "Bo", "answer": "2"}
BOOLQ = {"passage": "Snow is white.", "question": "is snow white", "answer": True}
PLAIN = {"context": "The sky is", "choices": ["blue", "green", "loud"], "label": 0}
_GONE: Any = object()


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(*paths: Path, cap: int = 0) -> list[Question]:
    return list(read_questions(task_files([str(path) for path in paths]), cap))


def test_mmlu_scores_the_letters_behind_the_listed_answers(tmp_path: Path) -> None:
    (found,) = read(write(tmp_path / "rows.jsonl", MMLU))
    context = (
        "The following are multiple choice questions (with answers) about high school maths.\n\n"
        "Two and two?\nA. 3\nB. 4\nC. 5\nD. 6\nAnswer:"
    )
    assert found.prompts == tuple((context, f" {letter}") for letter in "ABCD")
    assert (found.task, found.item, found.label) == ("mmlu", 0, 1)
    (bare,) = read(write(tmp_path / "bare.jsonl", {name: v for name, v in MMLU.items() if name != "subject"}))
    assert bare.prompts[0][0] == "Two and two?\nA. 3\nB. 4\nC. 5\nD. 6\nAnswer:"


def test_winogrande_scores_what_follows_the_option(tmp_path: Path) -> None:
    (found,) = read(write(tmp_path / "rows.jsonl", WINOGRANDE))
    assert found.prompts == (("Ann thanked Bo because Ann", " was kind."), ("Ann thanked Bo because Bo", " was kind."))
    assert (found.task, found.label) == ("winogrande", 1)


def test_boolq_scores_no_and_yes_behind_one_question_mark(tmp_path: Path) -> None:
    one, other = read(write(tmp_path / "a.jsonl", BOOLQ, {**BOOLQ, "question": "is snow white?", "answer": False}))
    context = "Snow is white.\nQuestion: is snow white?\nAnswer:"
    assert one.prompts == other.prompts == ((context, " no"), (context, " yes"))
    assert (one.task, one.label, other.label) == ("boolq", 1, 0)


def test_any_other_file_gives_its_name_and_a_space_goes_between(tmp_path: Path) -> None:
    rows = [PLAIN, {**PLAIN, "context": "The sky is "}, {**PLAIN, "choices": [" blue", "green"]}]
    found = read(write(tmp_path / "colours.v2.jsonl", *rows))
    assert [q.prompts[:2] for q in found] == [
        (("The sky is", " blue"), ("The sky is", " green")),
        (("The sky is ", "blue"), ("The sky is ", "green")),
        (("The sky is", " blue"), ("The sky is", " green")),
    ]
    assert {q.task for q in found} == {"colours"}


def test_the_cap_is_a_tasks_and_items_go_on_over_its_files(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a.jsonl", BOOLQ, BOOLQ), write(tmp_path / "b.jsonl", BOOLQ, BOOLQ, BOOLQ)
    other = write(tmp_path / "c.jsonl", PLAIN, PLAIN)
    assert [(q.task, q.item) for q in read(first, second, other, cap=3)] == [
        *(("boolq", i) for i in range(3)),
        *(("c", i) for i in range(2)),
    ]
    assert Counter(q.task for q in read(first, second, other)) == {"boolq": 5, "c": 2}


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_compressed_files_and_blank_lines(tmp_path: Path, suffix: str) -> None:
    data = f"\n{json.dumps(PLAIN)}\n\n".encode()
    path = tmp_path / f"sky.jsonl{suffix}"
    path.write_bytes(gzip.compress(data) if suffix == ".gz" else zstandard.compress(data))
    (found,) = read(path)
    assert (found.task, found.place) == ("sky", f"{path}, line 2")


@pytest.mark.parametrize(
    ("good", "change", "said"),
    [
        (MMLU, {"answer": _GONE}, r"a label \(0 to 3\) in the field 'answer', got none"),
        (MMLU, {"answer": None}, r"a label \(0 to 3\) in the field 'answer', got none"),
        (MMLU, {"answer": 4}, r"a label from the choices \(0 to 3\) in the field 'answer', got 4"),
        (MMLU, {"answer": True}, r"a label from the choices \(0 to 3\) in the field 'answer', got True"),
        (MMLU, {"choices": ["3"]}, "at least two choices in the field 'choices', got 1"),
        (MMLU, {"choices": "3, 4"}, "at least two choices in the field 'choices', got no list"),
        (MMLU, {"choices": ["3", 4]}, "a string in the field 'choices', got a int"),
        (MMLU, {"choices": [str(i) for i in range(27)]}, "at most 26 choices, since they are lettered, got 27"),
        (WINOGRANDE, {"answer": "3"}, r"a label from the choices \('1' or '2'\) in the field 'answer', got '3'"),
        (WINOGRANDE, {"answer": ""}, r"a label \('1' or '2'\) in the field 'answer', got none"),
        (WINOGRANDE, {"sentence": "No gap."}, "one _ with text after it in the field 'sentence', got 'No gap.'"),
        (WINOGRANDE, {"sentence": "It is _"}, "one _ with text after it in the field 'sentence', got 'It is _'"),
        (WINOGRANDE, {"sentence": "_ or _?"}, "one _ with text after it in the field 'sentence', got '_ or _"),
        (WINOGRANDE, {"option2": _GONE}, "text in the field 'option2', got none"),
        (BOOLQ, {"answer": "yes"}, r"a label from the choices \(False or True\) in the field 'answer', got 'yes'"),
        (BOOLQ, {"answer": 1}, r"a label from the choices \(False or True\) in the field 'answer', got 1"),
        (BOOLQ, {"passage": " "}, "text in the field 'passage', got a blank one"),
        (PLAIN, {"label": 3}, r"a label from the choices \(0 to 2\) in the field 'label', got 3"),
        (PLAIN, {"label": -1}, r"a label from the choices \(0 to 2\) in the field 'label', got -1"),
        (PLAIN, {"choices": []}, "at least two choices in the field 'choices', got 0"),
        (PLAIN, {"choices": ["blue", " "]}, "text in the field 'choices', choice 1, got a blank one"),
        (PLAIN, {"context": ""}, "text in the field 'context', got none"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, good: dict[str, Any], change: dict[str, Any], said: str) -> None:
    bad = {name: value for name, value in {**good, **change}.items() if value is not _GONE}
    path = write(tmp_path / "bad.jsonl", good, bad)
    with pytest.raises(CorpusError, match=rf"expected {said}.*line 2.*Mend or remove that line\.$") as caught:
        read(path)
    assert str(path) in str(caught.value)


def test_the_first_lines_label_may_be_what_is_missing(tmp_path: Path) -> None:
    path = write(tmp_path / "bad.jsonl", {name: value for name, value in PLAIN.items() if name != "label"})
    with pytest.raises(CorpusError, match=r"a label \(0 to 2\) in the field 'label', got none.*line 1"):
        read(path)


def test_fields_of_no_layout_and_files_without_questions(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"question, choices, answer; or .*context, choices, label, got text.*line 1"):
        read(write(tmp_path / "other.jsonl", {"text": "hello"}))
    with pytest.raises(CorpusError, match=r"at least one question, got none.*empty\.jsonl"):
        read(write(tmp_path / "a.jsonl", PLAIN), write(tmp_path / "empty.jsonl"))
    (tmp_path / "plain.txt").write_text("hello")
    with pytest.raises(CorpusError, match=r"questions as JSON Lines .*got text.*plain\.txt"):
        read(tmp_path / "plain.txt")
    with pytest.raises(CorpusError, match="not there"):
        read(tmp_path / "missing.jsonl")


def test_real_tasks_are_read_whole(fixtures: Path) -> None:
    names = ("mmlu/validation.jsonl.gz", "winogrande/dev.jsonl", "boolq/dev.jsonl")
    found = read(*(fixtures / "data" / name for name in names))
    assert Counter(q.task for q in found) == {"mmlu": 1531, "winogrande": 1267, "boolq": 3270}
    yes = sum(q.label for q in found if q.task == "boolq")
    assert yes == 2033  # the majority answer: 62 %
    assert not any("_" in context for q in found if q.task == "winogrande" for context, _ in q.prompts)
