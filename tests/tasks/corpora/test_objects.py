"""Corpora in object storage: the same reader over a bucket in memory, and over obstore's own stores where it is."""

from __future__ import annotations

import gzip
import io
import random
import sys
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage.errors import CorpusError, UsageError
from tasks.corpora import objects
from tasks.corpora.files import expand
from tasks.corpora.objects import ObstoreBucket, Ranges, find
from tasks.corpora.readers import read_texts
from tasks.progress import Progress, listening
from tests.tasks.corpora.cutting import corpus_digest

KEYS = {
    "data/b/rows.jsonl.gz": gzip.compress(b'{"text": "four"}\n{"text": "five"}\n'),
    "data/a/one.txt": b"one",
    "data/LICENSE": b"as is",
    "data/.hidden/no.txt": b"no",
    "data/table.csv": b"a,b",
    "database/other.txt": b"other",
}


class MemoryBucket:
    """A bucket in memory, in no order; counts what is fetched."""

    def __init__(self, content: dict[str, bytes]) -> None:
        self.content, self.fetched = content, 0

    def list(self, prefix: str) -> Iterable[tuple[str, int, str]]:
        return [self._entry(key) for key in self.content if key.startswith(prefix)]

    def head(self, key: str) -> tuple[str, int, str] | None:
        return self._entry(key) if key in self.content else None

    def fetch(self, key: str, start: int, stop: int) -> bytes:
        self.fetched += stop - start
        return self.content[key][start:stop]

    def _entry(self, key: str) -> tuple[str, int, str]:
        return key, len(self.content[key]), f"tag-{hash(self.content[key])}"


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> MemoryBucket:
    made = MemoryBucket(dict(KEYS))
    monkeypatch.setattr(objects, "open_bucket", lambda name: {"b": made}[name])
    return made


@pytest.mark.parametrize(
    ("url", "names"),
    [
        ("s3://b/data", ["a/one.txt", "b/rows.jsonl.gz"]),
        ("s3://b/data/", ["a/one.txt", "b/rows.jsonl.gz"]),
        ("s3://b", ["data/a/one.txt", "data/b/rows.jsonl.gz", "database/other.txt"]),
        ("s3://b/data/a/one.txt", ["one.txt"]),
        ("s3://b/data/LICENSE", ["LICENSE"]),
        ("s3://b/data/**/*.txt", ["a/one.txt"]),
        ("s3://b/dat*/*.t?t", ["database/other.txt"]),
        ("s3://b/data/[!b]/*", ["a/one.txt"]),
    ],
)
def test_a_prefix_or_pattern_gives_what_a_folder_would(bucket: MemoryBucket, url: str, names: list[str]) -> None:
    assert [f.name for f in expand([url])] == names


def test_objects_are_read_as_files_are(bucket: MemoryBucket) -> None:
    told: list[Progress] = []
    with listening(told.append):
        texts = list(read_texts(["s3://b/data"]))
    assert [(t.text, t.source) for t in texts] == [
        ("one", "a/one.txt"),
        ("four", "b/rows.jsonl.gz:1"),
        ("five", "b/rows.jsonl.gz:2"),
    ]
    assert sum(p.step for p in told) == sum(f.size() for f in expand(["s3://b/data"])) == bucket.fetched
    buffer = io.BytesIO()
    pq.write_table(pa.table({"text": ["six", None]}), buffer)
    bucket.content["p.parquet"] = buffer.getvalue()
    assert [t.text for t in read_texts(["s3://b/p.parquet"])] == ["six", ""]


def test_the_digest_follows_sizes_and_tags_and_fetches_nothing(bucket: MemoryBucket) -> None:
    before = corpus_digest(["s3://b/data"], None)
    assert corpus_digest(["s3://b/data/"], None) == before
    assert bucket.fetched == 0
    bucket.content["data/a/one.txt"] = b"two"
    assert corpus_digest(["s3://b/data"], None) != before


def test_errors_name_the_object(bucket: MemoryBucket) -> None:
    bucket.content["data/bad.jsonl"] = b'{"text": "a"}\nnot JSON\n'
    with pytest.raises(CorpusError, match=r"a JSON object.*in s3://b/data/bad.jsonl, line 2"):
        list(read_texts(["s3://b/data"]))
    with pytest.raises(CorpusError, match=r"at least one file of text, got none, in s3://b/nothing"):
        expand(["s3://b/nothing"])
    with pytest.raises(CorpusError, match=r"a file of a known kind.*got 'table.csv', in s3://b/data/table.csv"):
        expand(["s3://b/data/*.csv"])
    with pytest.raises(UsageError, match=r"a bucket, got 's3:///x', in --corpus. Write s3://BUCKET/PREFIX"):
        expand(["s3:///x"])


def test_without_obstore_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("obstore", "obstore.store"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError, match=r"the package obstore.*got none, in s3://bucket.*theodolite\[s3\]"):
        expand(["s3://bucket/x"])


def test_ranges_are_a_file() -> None:
    data = bytes(random.Random(3).randrange(256) for _ in range(5000))
    file = io.BufferedReader(Ranges(len(data), lambda a, b: data[a:b]), 64)
    assert file.read(10) == data[:10]
    assert (file.seek(-20, io.SEEK_END), file.read()) == (4980, data[-20:])
    assert file.read(1) == b""
    file.seek(100)
    assert file.read(3000) == data[100:3100]


@pytest.mark.parametrize("kind", ["memory", "folder"])
def test_stores_of_obstore(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    obstore = pytest.importorskip("obstore", reason="the optional package obstore is absent")
    from obstore.store import LocalStore, MemoryStore

    store = MemoryStore() if kind == "memory" else LocalStore(str(tmp_path))
    for key, content in KEYS.items():
        obstore.put(store, key, content)
    monkeypatch.setattr(objects, "open_bucket", lambda name: ObstoreBucket(store, f"s3://{name}"))
    assert [t.text for t in read_texts(["s3://b/data"])] == ["one", "four", "five"]
    assert [name for name, _ in find("s3://b/data/LICENSE")] == ["LICENSE"]
    before = corpus_digest(["s3://b/data"], None)
    assert corpus_digest(["s3://b/data"], None) == before
    obstore.put(store, "data/a/one.txt", b"changed")
    assert corpus_digest(["s3://b/data"], None) != before
    (_, gone), *_ = find("s3://b/data/a/one.txt")
    obstore.delete(store, "data/a/one.txt")
    with pytest.raises(CorpusError, match=r"object storage that answers, got .*in s3://b/data/a/one.txt.*AWS_REGION"):
        gone.open().read()
