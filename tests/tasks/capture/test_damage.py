"""What is lost or damaged in a finished run folder is named, and the same command makes it again, byte for byte."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from storage.errors import DamagedPart, ForeignStore
from storage.layout import Layout
from tasks.capture.folder import CaptureFolder
from tasks.stages.run import finish_stage
from tests.tasks.capture.test_recovery import contents
from tests.tasks.capture.worker import run

STAGE = "contributions"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Layout]:
    """Runs, text and layout of a finished run."""
    folder = tmp_path_factory.mktemp("finished")
    text = folder / "text.txt"
    text.write_text("The assert statement is a convenient way to insert debugging assertions. " * 12)
    capture = run(str(folder / "runs"), str(text))
    return folder / "runs", text, Layout(capture)


@pytest.fixture
def runs(finished: tuple[Path, Path, Layout], tmp_path: Path) -> Path:
    shutil.copytree(finished[0], tmp_path / "runs")
    return tmp_path / "runs"


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-2] ^= 0x08
    file.write_bytes(data)


def again(runs: Path, finished: tuple[Path, Path, Layout]) -> None:
    """The same command, and the bytes of the finished run."""
    run(str(runs), str(finished[1]))
    assert contents(runs) == contents(finished[0])


def test_a_flipped_partial_never_reaches_the_totals(runs: Path, finished: tuple[Path, Path, Layout]) -> None:
    layout = finished[2]
    partial = next(runs.glob(f"{layout.capture}/partials/{STAGE}/*/part-00001.safetensors"))
    flip(partial)
    next(runs.glob(f"{layout.capture}/tables/sink_fit/*/part-final.parquet")).unlink()
    key = next(
        r["key"] for r in CaptureFolder.open(str(runs), layout.capture).manifest.stage_runs() if r["stage"] == STAGE
    )
    with pytest.raises(DamagedPart, match=r"checksum .*part-00001\.safetensors\. Delete this file and run the same"):
        finish_stage(str(runs), layout.capture, STAGE, key)
    partial.unlink()
    again(runs, finished)


@pytest.mark.parametrize(
    "lost",
    [
        "activations.zarr/zarr.json",
        "activations.zarr/model/output_weight/c.3.0.0.0",
        "manifest/model.json",
        "manifest/shards/00001.json",
        "activations.zarr/shards/00001/zarr.json",
        "manifest/windows.parquet",
    ],
)
def test_what_is_lost_is_made_again(runs: Path, finished: tuple[Path, Path, Layout], lost: str) -> None:
    (runs / finished[2].capture / lost).unlink()
    assert lost.endswith("windows.parquet") or CaptureFolder.open(str(runs), finished[2].capture).shards_left()
    again(runs, finished)


def test_flipped_documents_are_made_again(runs: Path, finished: tuple[Path, Path, Layout]) -> None:
    folder = runs / finished[2].capture
    flip(folder / "manifest" / "windows.parquet")
    shutil.rmtree(folder / "activations.zarr" / "shards" / "00001")
    again(runs, finished)


def test_a_record_of_another_shape_is_named(runs: Path, finished: tuple[Path, Path, Layout]) -> None:
    record = runs / finished[2].capture / "manifest" / "capture.json"
    record.write_text('{"format": 1}')
    with pytest.raises(ForeignStore, match=r"a record with capture, key, .*capture\.json"):
        CaptureFolder.open(str(runs), finished[2].capture)
    stage_record = next((runs / finished[2].capture).glob(f"manifest/stages/{STAGE}/*/stage.json"))
    stage_record.write_text('{"format": 1}')
    shutil.copy(finished[0] / finished[2].capture / "manifest" / "capture.json", record)
    with pytest.raises(ForeignStore, match=r"a record with stage, key, .*stage\.json"):
        CaptureFolder.open(str(runs), finished[2].capture).manifest.stage_runs()
