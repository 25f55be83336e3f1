"""Which capture is meant where none is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.captures import described, nothing_captured, pick_capture
from storage.errors import UnknownName
from storage.filesystem import open_runs
from storage.layout import Layout
from storage.manifest import Manifest
from tasks.capture.finish import CAPTURE

KEY = "a" * 64


@pytest.fixture
def runs(tmp_path: Path) -> str:
    """Three captures: `b` was asked for last, `c` was made last."""
    fs = open_runs(str(tmp_path), create=True)
    for name, made, asked in (("a", "1", "4"), ("b", "2", "9"), ("c", "3", "5")):
        manifest = Manifest(fs, Layout(name))
        manifest.write_capture({"capture": name, "key": KEY, "created_at": made})
        record = {"stage": CAPTURE, "key": KEY, "version": 1, "status": "done", "requested_at": asked}
        manifest.write_stage(CAPTURE, KEY, record)
    return str(tmp_path)


def test_the_one_asked_for_last_or_named(runs: str) -> None:
    assert (pick_capture(runs, None), pick_capture(runs, "a")) == ("b", "a")


@pytest.mark.parametrize("name", ["", "d"])
def test_one_that_is_not_there_is_refused(runs: str, name: str) -> None:
    with pytest.raises(UnknownName, match=f"the name of a capture, got '{name}'"):
        pick_capture(runs, name)


def test_a_damaged_record_stops_nothing(runs: str) -> None:
    """`verify` is what tells of it, and must find a capture to look at."""
    fs, layout = open_runs(runs), Layout("b")
    fs.write_bytes(layout.stage_record(CAPTURE, KEY), b"")
    assert pick_capture(runs, None) == "c"
    fs.write_bytes(Layout("c").capture_record, b"{")
    assert pick_capture(runs, None) == "a"
    assert pick_capture(runs, "c") == "c"


def test_a_folder_without_captures_names_the_one_nearby(runs: str, tmp_path: Path) -> None:
    """The folder of a capture, or the one above the folder of runs, are the usual mistakes."""
    assert nothing_captured(f"{runs}/a") == f"Nothing is captured in {runs}/a. Did you mean --runs {runs}?"
    above = nothing_captured(str(Path(runs).parent))
    assert above.startswith(f"Nothing is captured in {Path(runs).parent}. Did you mean --runs {Path(runs).parent}/")
    (tmp_path / "empty" / "below").mkdir(parents=True)
    assert nothing_captured(str(tmp_path / "empty" / "below")).endswith("--runs names another folder.")


@pytest.fixture
def alike(tmp_path: Path) -> str:
    """Captures whose ids begin alike, one of them the beginning of another."""
    fs = open_runs(str(tmp_path), create=True)
    for name in ("text-12", "text-1", "text-34", "word-5"):
        Manifest(fs, Layout(name)).write_capture({"capture": name, "key": KEY, "created_at": "1"})
    return str(tmp_path)


@pytest.mark.parametrize(
    ("given", "meant"), [("w", "word-5"), ("text-3", "text-34"), ("text-1", "text-1"), ("text-12", "text-12")]
)
def test_a_beginning_that_one_id_has_will_do(alike: str, given: str, meant: str) -> None:
    """A whole id is itself, also where another begins with it."""
    assert pick_capture(alike, given) == meant


def test_a_beginning_of_several_is_refused_with_all_of_them(alike: str) -> None:
    with pytest.raises(UnknownName, match=r"got 'text', with which 3 begin.*They are: text-1, text-12, text-34\."):
        pick_capture(alike, "text")
    with pytest.raises(UnknownName, match="Did you mean 'word-5'"):
        pick_capture(alike, "word-55")


def test_what_tells_a_capture_from_another_is_one_line(tmp_path: Path) -> None:
    settings = {"model": "m", "corpus": ["a.txt", "b.txt"], "window": 64, "stride": 64, "attention": "stored"}
    settings |= {"dtype": "float32", "store_dtype": "float16", "layers": "0-2", "heads": None}
    record = {"capture": "c", "key": KEY, "created_at": "1", "settings": settings, "lengths": [64, 64, 9]}
    record |= {"ingredients": {}, "model_config": {}, "shards": [], "left_out": {}, "versions": {}, "windows": ""}
    Manifest(open_runs(str(tmp_path), create=True), Layout("c")).write_capture(record)
    assert described(str(tmp_path), "c") == (
        "m over a.txt, b.txt, window 64, 3 documents, attention stored, store_dtype float16, layers 0-2"
    )
