"""Text that cannot be read: the error names the file, the line and what to do."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from storage.errors import CorpusError
from tasks.corpora.readers import read_texts
from tests.tasks.corpora.cutting import corpus_digest


def fails(path: Path, data: bytes, pattern: str) -> None:
    path.write_bytes(data)
    with pytest.raises(CorpusError, match=pattern) as caught:
        list(read_texts([str(path)]))
    assert str(path) in str(caught.value)
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("line", "got"),
    [
        (b'{"text": "cut', "Unterminated string"),
        (b"plain words", "Expecting value at column 1"),
        (b"[1, 2]", "a JSON object, got a list"),
        (b'"just text"', "a JSON object, got a str"),
        (b"[" * 100_000, "a JSON object"),
        (b'{"text": 5}', "a string in the field 'text', got a int"),
        (rb'{"text": "\ud800 half"}', "half a surrogate pair at character 0"),
        (b'{"text": "caf\xe9"}', "text in UTF-8, got byte 0xe9"),
    ],
)
def test_a_bad_line(tmp_path: Path, line: bytes, got: str) -> None:
    fails(tmp_path / "bad.jsonl", b'{"text": "good"}\n\n' + line + b"\n", f"{got}.*line 3")


def test_another_field_can_be_chosen_for_one_that_holds_no_text(tmp_path: Path) -> None:
    fails(
        tmp_path / "bad.jsonl", b'{"text": "good"}\n{"text": 5}\n', r"line 2\..* or choose another field with --field"
    )


def test_a_json_array_over_many_lines_is_told_apart(tmp_path: Path) -> None:
    fails(tmp_path / "array.json", b'[\n {"text": "a"}\n]\n', "line 1.*Each line holds one JSON object")


def test_text_that_is_not_utf8_names_the_line(tmp_path: Path) -> None:
    fails(tmp_path / "latin.txt", b"one\ntwo\ncaf\xe9\n", "0xe9.*line 3.*iconv")


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
@pytest.mark.parametrize("inner", ["rows.jsonl", "rows.txt"])
def test_a_truncated_or_flipped_compressed_file(tmp_path: Path, suffix: str, inner: str) -> None:
    words = random.Random(0)
    rows = (json.dumps({"text": str(words.random()) * 20}).encode() + b"\n" for _ in range(2000))
    plain = b"".join(rows)
    whole = gzip.compress(plain) if suffix == ".gz" else zstandard.ZstdCompressor(write_checksum=True).compress(plain)
    path = tmp_path / f"{inner}{suffix}"
    where = r"rows\.jsonl\.\w+, line \d+" if inner == "rows.jsonl" else r"rows\.txt"
    fails(path, whole[: len(whole) // 2], f"a readable (gzip|zstd) file, got Truncated.*{where}.*fetch it again")
    flipped = bytearray(whole)
    flipped[-6] ^= 0x40
    fails(path, bytes(flipped), f"a readable (gzip|zstd) file.*{where}")
    fails(path, b"not compressed at all", "a readable (gzip|zstd) file")


def test_what_lies_before_the_cut_is_read_and_the_line_after_it_named(tmp_path: Path) -> None:
    rows = b"".join(json.dumps({"text": f"{i} " * 400}).encode() + b"\n" for i in range(4000))
    whole = gzip.compress(rows, compresslevel=1)
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(whole[: len(whole) // 2])
    read = []
    with pytest.raises(CorpusError) as caught:
        for text in read_texts([str(path)]):
            read.append(text.text)
    assert read == [f"{i} " * 400 for i in range(len(read))]
    assert len(read) > 1000
    assert caught.value.where == f"{path}, line {len(read) + 1}"


def test_a_parquet_file_that_is_none_or_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"text": ["one"] * 1000}), path)
    whole = path.read_bytes()
    fails(path, whole[:-20], "a readable parquet file")
    fails(path, b"", "a readable parquet file")
    middle = whole[:8] + b"\x00" * 24 + whole[32:]
    fails(path, middle, "a readable parquet file")


WORD = "{}\t{}\tx\tNOUN\t_\t_\t0\troot\t_\t{}\n"


@pytest.mark.parametrize(
    ("lines", "got"),
    [
        ("1\tHello\n", r"got 2 column\(s\), the first '1'.*line 3"),
        (WORD.format("x", "Hello", "_"), r"got 10 column\(s\), the first 'x'.*line 3"),
        (WORD.format(1, "a", "_") + WORD.format(3, "b", "_"), "word 2 of the sentence, got word 3.*line 4"),
    ],
)
def test_a_bad_conllu_line(tmp_path: Path, lines: str, got: str) -> None:
    fails(tmp_path / "bad.conllu", f"# sent_id = s1\n# text = x\n{lines}\n".encode(), got)


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "closed.txt"
    path.write_text("x")

    def refuse(*_args: object, **_kwargs: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(CorpusError, match=r"Permission denied, in .*closed\.txt"):
        corpus_digest([str(path)], None)
