"""Data sets of the hub, through a stand-in for the package datasets: no test asks the network."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from storage.errors import CorpusError, UnknownName, UsageError
from tasks.corpora import hub
from tasks.corpora.files import expand
from tasks.corpora.hub import HubDataset, parse
from tasks.corpora.readers import read_texts
from tests.tasks.corpora.cutting import corpus_digest


class Stream:
    """What datasets streams: rows, and features where the format declares them."""

    def __init__(self, rows: list[dict[str, Any]], features: dict[str, str] | None) -> None:
        self.rows, self.read = rows, 0
        self.features = {k: SimpleNamespace(dtype=v) for k, v in features.items()} if features else None

    def _resolve_features(self) -> Stream:
        return Stream(self.rows, dict.fromkeys(self.rows[0], "string"))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for row in self.rows:
            if row.get("text") == "broken":
                raise ConnectionError("the line was cut\nand more")
            self.read += 1
            yield row


class Datasets(SimpleNamespace):
    """A module with one data set, owner/name, and what was asked of it."""

    def __init__(self) -> None:
        rows = [{"text": "one", "n": 1}, {"text": None, "n": 2}, {"text": "three", "n": 3}]
        self.streams = {
            "train": Stream(rows, {"text": "string", "n": "int64"}),
            "test": Stream([{"body": "four"}], None),
            "broken": Stream([{"text": "five"}, {"text": "broken"}], {"text": "string"}),
        }
        self.revision, self.asked = "c0ffee", []

    def load_dataset_builder(self, name: str, config: str | None) -> SimpleNamespace:
        self.asked.append((name, config))
        if name != "owner/name":
            raise FileNotFoundError(f"Dataset '{name}' doesn't exist on the Hub")
        return SimpleNamespace(
            hash=self.revision,
            config=SimpleNamespace(name=config or "default"),
            as_streaming_dataset=lambda: self.streams,
        )


@pytest.fixture
def datasets(monkeypatch: pytest.MonkeyPatch) -> Iterator[Datasets]:
    made = Datasets()
    monkeypatch.setitem(sys.modules, "datasets", made)
    _forget()
    yield made
    _forget()


def _forget() -> None:
    hub._builder.cache_clear()
    hub._streams.cache_clear()


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("hf:squad", HubDataset("squad", None, None)),
        ("hf:owner/name", HubDataset("owner/name", None, None)),
        ("hf:owner/name:test", HubDataset("owner/name", None, "test")),
        ("hf:owner/name/config-v1:train", HubDataset("owner/name", "config-v1", "train")),
    ],
)
def test_names(text: str, parsed: HubDataset) -> None:
    assert parse(text) == parsed
    assert str(parsed) == text


@pytest.mark.parametrize("text", ["hf:", "hf:a//b", "hf:a/b/c/d", "hf:a/b:", "hf: "])
def test_names_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match=r"hf:OWNER/NAME/CONFIG, each with :SPLIT.*, got '"):
        parse(text)


def test_rows_are_read_as_they_arrive(datasets: Datasets) -> None:
    rows = read_texts(["hf:owner/name"])
    assert datasets.asked == []  # nothing is asked of the hub before it is read
    assert [(t.text, t.source) for t in [next(rows), next(rows)]] == [("one", "owner/name:0"), ("", "owner/name:1")]
    assert datasets.streams["train"].read == 2
    assert [t.text for t in read_texts(["hf:owner/name:test"])] == ["four"]


def test_the_digest_follows_revision_configuration_and_split(datasets: Datasets) -> None:
    def digest(name: str = "hf:owner/name") -> str:
        _forget()
        return corpus_digest([name], None)

    first = digest()
    assert digest("hf:owner/name:train") == first == digest()
    others = [digest("hf:owner/name:test"), digest("hf:owner/name/other")]
    datasets.revision = "decaf"
    assert len({first, *others, digest()}) == 4
    assert all(stream.read == 0 for stream in datasets.streams.values())


def test_what_cannot_be_read_is_told(datasets: Datasets) -> None:
    with pytest.raises(CorpusError, match=r"got Dataset 'absent' doesn't exist on the Hub, in hf:absent. Look at"):
        corpus_digest(["hf:absent"], None)
    with pytest.raises(UnknownName, match=r"a split, got 'tran', in hf:owner/name:tran. Did you mean 'train'"):
        corpus_digest(["hf:owner/name:tran"], None)
    with pytest.raises(UnknownName, match=r"a field, got 'txt', in hf:owner/name. Did you mean 'text'"):
        list(read_texts(["hf:owner/name"], "txt"))
    with pytest.raises(CorpusError, match=r"got the line was cut, in hf:owner/name:broken"):
        list(read_texts(["hf:owner/name:broken"]))
    del datasets.streams["train"]
    _forget()
    with pytest.raises(UsageError, match=r"a split, got none, in hf:owner/name. Add one of :test, :broken"):
        corpus_digest(["hf:owner/name"], None)


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    _forget()
    assert expand(["hf:squad"])[0].place() == "hf:squad"
    with pytest.raises(UsageError, match=r"the package datasets.*got none, in hf:squad.*theodolite\[hub\]"):
        corpus_digest(["hf:squad"], None)
