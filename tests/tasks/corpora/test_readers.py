"""Readers over real text in every format, and over written rows."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from storage.errors import UnknownName, UsageError
from tasks.corpora.readers import Text, read_texts
from tasks.corpora.topics import PYTHON_TOPICS


def write_rows(path: Path, rows: list[dict[str, object]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_a_text_file_is_one_document_unchanged(fixtures: Path) -> None:
    path = fixtures / "data/tinyshakespeare/input.txt"
    (text,) = read_texts([str(path)])
    assert text == Text(path.read_bytes().decode(), "input.txt")
    assert len(text.text) == 1_115_394


def test_raw_text_keeps_its_spaces_and_a_mark_in_front_is_dropped(fixtures: Path, tmp_path: Path) -> None:
    (text,) = read_texts([str(fixtures / "data/wikitext2/wiki.test.raw")])
    assert "= Robert Boulter =" in text.text[:30]
    windows = tmp_path / "w.txt"
    windows.write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
    assert [t.text for t in read_texts([str(windows)])] == ["one\r\ntwo\r\n"]
    rows = tmp_path / "w.jsonl"
    rows.write_bytes(b'\xef\xbb\xbf{"text": "one"}\r\n')
    assert [t.text for t in read_texts([str(rows)])] == ["one"]


def test_json_lines_by_field(fixtures: Path) -> None:
    path = fixtures / "data/gsm8k/test.jsonl"
    texts = list(read_texts([str(path)], "question"))
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [t.text for t in texts] == [row["question"] for row in rows]
    assert len(texts) == 1319
    assert texts[6].source == "test.jsonl:7"


def test_fields_joined_are_one_text(fixtures: Path, tmp_path: Path) -> None:
    path = fixtures / "data/gsm8k/test.jsonl"
    texts = list(read_texts([str(path)], "question+answer"))
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [t.text for t in texts] == [f"{row['question']}\n{row['answer']}" for row in rows]
    partly = write_rows(tmp_path / "a.jsonl", [{"q": None, "a": "yes"}, {"q": "why", "a": ""}, {"q": "u", "a": "v"}])
    assert [t.text for t in read_texts([partly], "q+a")] == ["yes", "why", "u\nv"]
    assert [t.text for t in read_texts([partly], "a+q")] == ["yes", "why", "v\nu"]
    named = write_rows(tmp_path / "b.jsonl", [{"q+a": "whole", "q": "x", "a": "y"}])
    assert [t.text for t in read_texts([named], "q+a")] == ["whole"]
    pq.write_table(pa.table({"a": ["1", None], "n": [1, 2], "q": ["0", "2"]}), tmp_path / "t.parquet")
    assert [t.text for t in read_texts([str(tmp_path / "t.parquet")], "q+a")] == ["0\n1", "2"]


def test_a_joined_field_that_is_not_there_or_holds_no_text(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl", [{"question": "why", "answer": "so", "n": 1}])
    with pytest.raises(UnknownName, match=r"'anwser', in .*Did you mean 'answer'"):
        list(read_texts([path], "question+anwser"))
    with pytest.raises(UsageError, match="a field that holds text, got 'n', which does not"):
        list(read_texts([path], "question+n"))


def test_compressed_json_lines(fixtures: Path, tmp_path: Path) -> None:
    path = fixtures / "data/mmlu/dev.jsonl.gz"
    texts = [t.text for t in read_texts([str(path)], "question")]
    plain = gzip.decompress(path.read_bytes())
    assert texts == [json.loads(line)["question"] for line in plain.splitlines()]
    zst = tmp_path / "dev.jsonl.zst"
    half = plain.index(b"\n", len(plain) // 2) + 1
    zst.write_bytes(zstandard.compress(plain[:half]) + zstandard.compress(plain[half:]))  # two frames, as tools append
    assert [t.text for t in read_texts([str(zst)], "question")] == texts


def test_minimal_pairs_as_a_folder(fixtures: Path) -> None:
    texts = list(read_texts([str(fixtures / "data/blimp/*.jsonl")], "sentence_good"))
    assert len(texts) == 6000
    assert texts[0].source == "determiner_noun_agreement_1.jsonl:1"


def test_python_topics_are_sorted_english_text() -> None:
    texts = list(read_texts([PYTHON_TOPICS]))
    topics = [t.source.removeprefix("python-topics:") for t in texts]
    assert topics == sorted(topics)
    assert "assert" in topics
    assert sum(len(t.text) for t in texts) > 400_000


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_parquet_rows_and_nulls(tmp_path: Path, kind: pa.DataType) -> None:
    path = tmp_path / "t.parquet"
    column = pa.array(["one", None, "three"], pa.string()).cast(kind)
    pq.write_table(pa.table({"id": [1, 2, 3], "body": column}), path)
    assert list(read_texts([str(path)])) == [
        Text("one", "t.parquet:0"),
        Text("", "t.parquet:1"),
        Text("three", "t.parquet:2"),
    ]


def test_the_default_field(tmp_path: Path) -> None:
    both = write_rows(tmp_path / "a.jsonl", [{"title": "t", "text": "body", "n": 1}, {"title": "u", "text": None}])
    assert [t.text for t in read_texts([both])] == ["body", ""]
    alone = write_rows(tmp_path / "b.jsonl", [{"n": 1, "content": "only"}])
    assert [t.text for t in read_texts([alone])] == ["only"]
    null_first = write_rows(tmp_path / "c.jsonl", [{"text": None, "id": "x"}, {"text": "late", "id": "y"}])
    assert [t.text for t in read_texts([null_first])] == ["", "late"]


def test_blank_lines_are_passed_over_and_lines_keep_their_numbers(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('\n{"text": "a"}\r\n\n{"text": "b"}')
    assert [t.source for t in read_texts([str(path)])] == ["a.jsonl:2", "a.jsonl:4"]


def test_an_unknown_field_names_the_nearest(fixtures: Path, tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match=r"'questoin', in .*test\.jsonl, line 1\. Did you mean 'question'\?"):
        next(read_texts([str(fixtures / "data/gsm8k/test.jsonl")], "questoin"))
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"body": ["x"]}), path)
    with pytest.raises(UnknownName, match=r"'bodi', in .*t\.parquet\. Did you mean 'body'\?"):
        next(read_texts([str(path)], "bodi"))


def test_a_row_that_lacks_the_field_is_named(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl", [{"text": "x"}, {"txt": "y"}])
    with pytest.raises(UnknownName, match=r"'text', in .*a\.jsonl, line 2\. Did you mean 'txt'\?"):
        list(read_texts([path]))


def test_several_string_fields_or_none_ask_for_a_choice(fixtures: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"one string field alone, got the fields question, answer.*--field one of"):
        next(read_texts([str(fixtures / "data/gsm8k/test.jsonl")]))
    numbers = write_rows(tmp_path / "n.jsonl", [{"n": 1}])
    with pytest.raises(UsageError, match="No field of it holds text"):
        next(read_texts([numbers]))
    with pytest.raises(UsageError, match="a field that holds text, got 'n', which does not"):
        next(read_texts([numbers], "n"))


def test_files_without_fields_know_only_text(fixtures: Path) -> None:
    path = str(fixtures / "data/tinyshakespeare/input.txt")
    assert len(list(read_texts([path], "text"))) == 1
    with pytest.raises(UnknownName, match=r"'question', in .*input\.txt \(it has no fields\)"):
        next(read_texts([path], "question"))


def test_a_large_file_is_never_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "large.jsonl.gz"
    line = json.dumps({"text": "word " * 2000}).encode() + b"\n"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(4000):
            file.write(line)  # 40 MB of text
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    count = decompressed = 0
    for _ in read_texts([str(path)]):
        count += 1
        decompressed = max(decompressed, pa.total_allocated_bytes() - before)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 4000
    assert peak < 8 << 20
    assert decompressed < 8 << 20


def test_reading_stops_where_the_reader_stops(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "good"}\nthis is not JSON\n')
    assert [t.text for t in islice(read_texts([str(path)]), 1)] == ["good"]
