"""Which capture is meant where none is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.captures import pick_capture
from storage.errors import UnknownName
from storage.filesystem import open_runs
from storage.layout import Layout
from storage.manifest import Manifest
from tasks.capture_finish import CAPTURE

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
