"""The file of a capture's documents: written as they come, read a row group at a time, damage told."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from storage.errors import DamagedPart, MissingPart
from storage.filesystem import open_runs
from storage.layout import Layout
from storage.manifest import FileRecord
from tasks.capture import documents
from tasks.capture.describe import describe
from tasks.capture.documents import DOCUMENTS_WORK, Windows, read_windows, record_of, write_windows
from tasks.capture.plan import plan_capture, prepare_capture
from tasks.capture.settings import CaptureSettings
from tasks.corpora.files import expand
from tasks.corpora.streams import CORPUS
from tasks.corpora.windows import Document
from tasks.progress import Progress, listening


def made_up(n: int, length: int = 40) -> Iterator[Document]:
    for i in range(n):
        yield Document(np.arange(i, i + 2 + i % length, dtype=np.int32), f"text:{i}", i)


def test_what_is_written_is_read_in_any_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "GROUP_TOKENS", 300)
    fs, told = open_runs(str(tmp_path), create=True), list[Progress]()
    with listening(told.append):
        record, lengths = write_windows(fs, "w.parquet", made_up(200))
    assert record == record_of(fs, "w.parquet") == FileRecord.of((tmp_path / "w.parquet").read_bytes())
    assert lengths == [2 + i % 40 for i in range(200)]
    assert sum(p.step for p in told if p.kind == DOCUMENTS_WORK) == 200
    windows, expected = Windows(fs, "w.parquet"), list(made_up(200))
    groups = list(windows.groups())
    assert len(groups) > 10 and len(windows) == len(windows["token_ids"]) == 200
    assert all(len(group) == 1 or sum(map(len, group["token_ids"])) < 300 + 42 for group in groups)
    for doc in (199, 0, 57, 58, 3, 199):
        np.testing.assert_array_equal(windows["token_ids"][doc].values.to_numpy(), expected[doc].token_ids)
        assert windows["source"][doc].as_py() == f"text:{doc}"
    rows = [row for group in windows.groups() for row in group.to_pylist()]
    columns = windows.to_pydict()
    assert [row["doc"] for row in rows] == columns["doc"] == list(range(200))
    assert columns["token_ids"] == [row["token_ids"] for row in rows] == [d.token_ids.tolist() for d in expected]
    for outside in (-1, 200):
        with pytest.raises(IndexError, match=f"document {outside} of 200"):
            windows["token_ids"][outside]


def test_neither_texts_nor_ids_are_held(tmp_path: Path) -> None:
    """64 MB of ids pass through, a few are in memory: what grows is the list of lengths."""
    fs = open_runs(str(tmp_path), create=True)
    one = np.arange(512, dtype=np.int32)
    tracemalloc.start()
    write_windows(fs, "w.parquet", (Document(one + i % 7, "text", i) for i in range(32_000)))
    windows = Windows(fs, "w.parquet")
    assert windows["token_ids"][31_999].values.to_numpy()[0] == 31_999 % 7
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16e6


def test_damage_and_absence_are_named(tmp_path: Path) -> None:
    fs, layout = open_runs(str(tmp_path), create=True), Layout("capture")
    with pytest.raises(MissingPart, match=r"windows.parquet"):
        read_windows(fs, layout)
    fs.write_bytes(layout.windows, b"PAR1 and no more")
    with pytest.raises(DamagedPart, match=r"a whole Parquet file, got .*windows.parquet. Run `theodolite verify`"):
        read_windows(fs, layout)


def test_progress_is_honest(tmp_path: Path) -> None:
    """Bytes of the corpus as they lie where its end is known, documents where a cap is given."""
    for name in ("a.txt", "b.jsonl"):
        (tmp_path / name).write_text('{"text": "a line of text"}\n' * 400)
    settings = CaptureSettings("sample", (str(tmp_path / "a.txt"), str(tmp_path / "b.jsonl")), window=32)
    described, told = describe(settings), list[Progress]()
    with listening(told.append):
        prepare_capture(settings, str(tmp_path / "runs"))
    size = sum(f.size() for f in expand(settings.corpus))
    assert described.extent() == (CORPUS, size, "bytes")
    assert sum(p.step for p in told if p.kind == CORPUS) == size
    capped = describe(CaptureSettings("sample", settings.corpus, window=32, max_documents=5))
    assert capped.extent() == (DOCUMENTS_WORK, 5, "documents")
    assert describe(CaptureSettings("sample", ("python-topics",), window=32)).extent() == (CORPUS, 0, "bytes")
    assert plan_capture(capped.settings, str(tmp_path / "runs")).n_docs == 5


def test_nothing_of_an_empty_corpus_is_left(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    settings = CaptureSettings("sample", (str(tmp_path / "empty.txt"),), window=32)
    with pytest.raises(ValueError, match="at least one document of two tokens"):
        prepare_capture(settings, str(tmp_path / "runs"))
    assert [p.name for p in (tmp_path / "runs").rglob("*.parquet")] == []
