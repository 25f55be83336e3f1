"""Minimal pairs: how files of them are read, capped, and turned into tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from storage.errors import CorpusError, UsageError
from tasks.corpora.pairs import Pair, PairEncoder, pair_files, read_pairs


def write(path: Path, *rows: Mapping[str, Any] | str) -> str:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return str(path)


def row(good: str, bad: str, **more: Any) -> dict[str, Any]:
    return {"sentence_good": good, "sentence_bad": bad, **more}


def test_pairs_of_a_task_are_counted_over_its_files_and_capped(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    one = write(tmp_path / "plural.jsonl", row("a", "b", UID="x"), "", row("c", "d"))
    other = write(tmp_path / "more" / "plural.jsonl", row("e", "f"))
    last = write(tmp_path / "det.jsonl", row("g", "h"))
    files = pair_files([one, other, last])
    found = list(read_pairs(files, 0))
    assert [(p.task, p.item, p.good, p.bad) for p in found] == [
        ("plural", 0, "a", "b"),
        ("plural", 1, "c", "d"),
        ("plural", 2, "e", "f"),
        ("det", 0, "g", "h"),
    ]
    assert found[1].place == f"{one}, line 3"
    assert [(p.task, p.item) for p in read_pairs(files, 1)] == [("plural", 0), ("det", 0)]


def test_blimp_is_read_as_it_is(fixtures: Path) -> None:
    files = pair_files([str(fixtures / "data/blimp/*.jsonl")])
    found = list(read_pairs(files, 0))
    assert len(files) == 6
    assert len(found) == 6_000
    assert found[2000].task == "irregular_plural_subject_verb_agreement_1"
    assert all(pair.good != pair.bad for pair in found)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"sentence_good": "a"}, r"each of the fields sentence_good and sentence_bad, got sentence_good, in .*line 2"),
        (row("a", "  "), "got a blank sentence_bad"),
        (row("a", ""), "got a blank sentence_bad"),
        ({"sentence_good": 3, "sentence_bad": "b"}, r"'sentence_good', got a int, in .*Mend or remove that line\.$"),
        ("[1]", "object"),
    ],
)
def test_a_line_that_is_no_pair_is_named(tmp_path: Path, line: Any, said: str) -> None:
    file = write(tmp_path / "a.jsonl", row("a", "b"), line)
    with pytest.raises(CorpusError, match=said):
        list(read_pairs(pair_files([file]), 0))


def test_files_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="at least one minimal pair, got none"):
        list(read_pairs(pair_files([write(tmp_path / "a.jsonl")]), 0))
    text = tmp_path / "a.txt"
    text.write_text("a")
    with pytest.raises(CorpusError, match=r"minimal pairs as JSON Lines .* got text"):
        pair_files([str(text)])
    with pytest.raises(UsageError, match="each file of minimal pairs once"):
        pair_files([write(tmp_path / "b.jsonl", row("a", "b"))] * 2)


def encoder(bos: int | None = 0, positions: int | None = None) -> PairEncoder:
    return PairEncoder(lambda text: [ord(letter) for letter in text], bos, positions)


def test_a_bos_token_stands_in_front_once_and_lets_the_first_token_be_scored() -> None:
    pair = encoder().pair(Pair("t", 0, "p", "ab", "\0c"))
    assert (pair.good.tolist(), pair.bad.tolist()) == ([0, 97, 98], [0, 99])
    assert pair.first_scored
    assert not encoder(bos=None).pair(Pair("t", 0, "p", "ab", "c")).first_scored


def test_what_cannot_be_told_is_known() -> None:
    assert encoder().pair(Pair("t", 0, "p", "a", "a")).alike
    assert not encoder().pair(Pair("t", 0, "p", "a", "b")).alike
    assert encoder().pair(Pair("t", 0, "p", "a", "b")).scored
    assert not encoder(bos=None).pair(Pair("t", 0, "p", "ab", "c")).scored


def test_a_sentence_longer_than_the_model_is_named() -> None:
    with pytest.raises(CorpusError, match="at most 3 tokens, the model's positions, got 4, in p"):
        encoder(positions=3).pair(Pair("t", 0, "p", "ab", "abc"))
