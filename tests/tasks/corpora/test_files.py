"""Which files a corpus is, in which order, and its digest."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from storage.errors import CorpusError, UsageError
from tasks.corpora.files import KINDS, expand
from tests.tasks.corpora.cutting import corpus_digest


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("b/two.txt", "a/one.txt", "a/three.jsonl.gz", "LICENSE", ".hidden/no.txt", "a/.no.txt", "table.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


def names(*paths: str) -> list[str]:
    return [f.name for f in expand(paths)]


def test_a_folder_gives_known_files_below_it_sorted(tree: Path) -> None:
    assert names(str(tree)) == ["a/one.txt", "a/three.jsonl.gz", "b/two.txt"]


def test_a_pattern_gives_what_it_matches_named_from_its_first_wildcard(tree: Path) -> None:
    assert names(f"{tree}/*/*.txt") == ["a/one.txt", "b/two.txt"]
    assert names(f"{tree}/a/t*") == ["three.jsonl.gz"]
    assert names(f"{tree}/**/*.txt") == ["a/one.txt", "b/two.txt"]


def test_a_relative_pattern(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree)
    assert names("*/*.txt") == ["a/one.txt", "b/two.txt"]
    assert names("./b/two.txt") == ["two.txt"]


def test_files_keep_the_order_in_which_they_are_named(tree: Path) -> None:
    assert names(f"{tree}/b/two.txt", f"{tree}/a/one.txt") == ["two.txt", "one.txt"]


def test_a_named_file_needs_no_suffix_and_may_hold_wildcard_characters(tree: Path) -> None:
    odd = tree / "odd[1]*.txt"
    odd.write_text("x")
    assert [f.kind for f in expand([str(tree / "LICENSE")])] == ["text"]
    assert names(str(odd)) == ["odd[1]*.txt"]


@pytest.mark.parametrize(
    ("name", "kind", "compression"),
    [
        ("a.jsonl", "jsonl", None),
        ("a.JSON.gz", "jsonl", "gzip"),
        ("a.jsonl.zst", "jsonl", "zstd"),
        ("a.parquet", "parquet", None),
        ("a.conllu.gz", "conllu", "gzip"),
        ("a.raw", "text", None),
        ("a.gz", "text", "gzip"),
    ],
)
def test_the_suffix_says_how_a_file_is_read(tmp_path: Path, name: str, kind: str, compression: str | None) -> None:
    (tmp_path / name).touch()
    (file,) = expand([str(tmp_path / name)])
    assert (file.kind, file.compression) == (kind, compression)


@pytest.mark.parametrize("name", ["table.csv", "rows.parquet.gz"])
def test_an_unknown_kind_is_refused_with_the_known_ones(tree: Path, name: str) -> None:
    (tree / name).touch()
    with pytest.raises(CorpusError, match=r"a file of a known kind \(\.txt.*\.conllu.*got '" + name) as caught:
        expand([str(tree / name)])
    assert "Rename it" in str(caught.value)


def test_an_absent_file_names_the_nearest_one(tree: Path) -> None:
    with pytest.raises(CorpusError, match=r"two\.text', not there\. Did you mean 'two\.txt'\?"):
        expand([str(tree / "b/two.text")])
    with pytest.raises(CorpusError, match=r"nowhere/one\.txt', not there\. The folder .*nowhere is not there either"):
        expand([str(tree / "nowhere/one.txt")])
    with pytest.raises(CorpusError, match=r"Nothing in .*/b has a name like it"):
        expand([str(tree / "b/qqqqqq")])


def test_a_folder_or_pattern_without_text_is_refused(tmp_path: Path) -> None:
    for empty in (str(tmp_path), f"{tmp_path}/*.txt"):
        with pytest.raises(CorpusError, match="at least one file of text, got none") as caught:
            expand([empty])
        assert all(s in str(caught.value) for s in KINDS)


def test_linked_files_and_folders_are_read_once_and_rings_end(tree: Path) -> None:
    outside = tree / "c"
    outside.mkdir()
    (outside / "far.txt").write_text("far")
    (tree / "a" / "linked").symlink_to(outside)
    (tree / "a" / "ring").symlink_to(tree / "a")
    (tree / "a" / "same.txt").symlink_to(tree / "a" / "one.txt")
    assert names(f"{tree}/a") == ["linked/far.txt", "one.txt", "same.txt", "three.jsonl.gz"]
    assert names(f"{tree}/a/**/*.txt") == ["linked/far.txt", "one.txt", "same.txt"]


def test_a_link_that_leads_nowhere_is_not_passed_over(tree: Path) -> None:
    (tree / "a" / "gone.txt").symlink_to(tree / "nothing")
    for corpus in (f"{tree}/a", f"{tree}/a/*.txt"):
        with pytest.raises(CorpusError, match=r"a link that leads nowhere, in .*a/gone\.txt.*Mend or remove"):
            expand([corpus])


def test_a_folder_that_cannot_be_read_is_not_passed_over(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests may run as root, who may read everything: the system's refusal is made up."""
    scan = os.scandir

    def refusing(path: str) -> Any:
        if str(path).endswith("/b"):
            raise PermissionError(13, "Permission denied", path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(CorpusError, match=r"a folder that can be read, got Permission denied, in .*/b\. Give yourself"):
        expand([str(tree)])


def test_many_files_keep_one_order(tmp_path: Path) -> None:
    for i in range(300):
        (tmp_path / f"{i % 7}").mkdir(exist_ok=True)
        (tmp_path / f"{i % 7}" / f"{i}.txt").write_text(str(i))
    found = names(str(tmp_path))
    assert len(found) == 300
    assert found == names(f"{tmp_path}/**/*.txt") == sorted(found, key=lambda name: name.split("/"))


def test_nothing_named_and_other_addresses_are_wrong_usage() -> None:
    with pytest.raises(UsageError, match="at least one corpus, got none"):
        expand([])
    with pytest.raises(UsageError, match=r"s3://BUCKET/PREFIX or hf:NAME, got .https://x/y.txt., in --corpus"):
        expand(["https://x/y.txt"])


def test_the_digest_follows_bytes_kind_order_and_field_but_not_places(tree: Path, tmp_path: Path) -> None:
    one, two = str(tree / "a/one.txt"), str(tree / "b/two.txt")
    whole = corpus_digest([one, two], None)
    assert len(whole) == 64
    assert corpus_digest([one, two], None) == whole
    moved = tmp_path / "elsewhere.txt"
    shutil.copy(one, moved)
    assert corpus_digest([str(moved), two], None) == whole
    as_rows = moved.rename(tmp_path / "elsewhere.jsonl")
    others = [corpus_digest(p, None) for p in ([two, one], [one], [str(as_rows), two], ["python-topics"])]
    others.append(corpus_digest([one, two], "text"))
    Path(two).write_text("changed")
    others.append(corpus_digest([one, two], None))
    assert len({whole, *others}) == 7
