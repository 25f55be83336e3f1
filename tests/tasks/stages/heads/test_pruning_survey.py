"""The survey of a stage: done once by each shard, resumed where it was, and no part of any table."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from storage.catalog import read_catalog
from storage.errors import DamagedPart, IncompleteRun
from storage.filesystem import open_runs
from storage.layout import survey_part
from tasks.capture.folder import CaptureFolder
from tasks.capture.verify import verify_capture
from tasks.progress import Progress, listening
from tasks.stages.registry import tables
from tasks.stages.run import SURVEY, finish_stage, prepare_stage, run_stage_shards, stage_parts_left
from tests.tasks.capture.made_captures import Made
from tests.tasks.stages.running import Ran, captured, interrupted, run

VALUES = {"retentions": "0.5,0.2", "seeds": 1}
TEXT = "The quick brown fox jumps over the lazy dog"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    made = captured(tmp_path_factory.mktemp("whole"), text=TEXT, shard_tokens=26, batch_tokens=13)
    return run(made, "pruning", VALUES)


@pytest.fixture
def begun(undisturbed: Ran, tmp_path: Path) -> Made:
    """The same capture, the stage asked for."""
    shutil.copytree(undisturbed.made.runs, tmp_path / "runs", ignore=shutil.ignore_patterns("pruning*"))
    made = replace(undisturbed.made, runs=str(tmp_path / "runs"))
    assert prepare_stage(made.runs, made.capture, "pruning", VALUES) == undisturbed.key
    return made


def files(made: Made, key: str) -> dict[str, bytes]:
    """What the survey's parts hold."""
    layout = CaptureFolder.open(made.runs, made.capture).layout
    folder = (Path(made.runs) / layout.partial("pruning", key, SURVEY)).parent
    return {path.name: path.read_bytes() for path in sorted(folder.glob("part-survey*"))}


def test_any_order_of_shards_ends_with_the_same_bytes(undisturbed: Ran, begun: Made) -> None:
    made, key, steps = begun, undisturbed.key, list[Progress]()
    with listening(steps.append):
        for shard in (1, 0):
            assert run_stage_shards(made.runs, made.capture, "pruning", key, [shard], SURVEY) == [shard]
    assert {(step.kind, step.unit) for step in steps} == {("pruning: survey", "documents")}
    assert sum(step.step for step in steps) == pytest.approx(4)
    assert finish_stage(made.runs, made.capture, "pruning", key, SURVEY)
    assert files(made, key) == files(undisturbed.made, key)
    assert run(made, "pruning", VALUES).bytes("pruning") == undisturbed.bytes("pruning")


def test_nothing_is_surveyed_twice(undisturbed: Ran, begun: Made) -> None:
    made, key = begun, undisturbed.key
    assert stage_parts_left(made.runs, made.capture, "pruning", key, SURVEY) == [0, 1]
    assert run_stage_shards(made.runs, made.capture, "pruning", key, [0], SURVEY) == [0]
    assert stage_parts_left(made.runs, made.capture, "pruning", key, SURVEY) == [1]
    assert run_stage_shards(made.runs, made.capture, "pruning", key, [0, 1], SURVEY) == [1]
    assert finish_stage(made.runs, made.capture, "pruning", key, SURVEY)
    assert not finish_stage(made.runs, made.capture, "pruning", key, SURVEY)


def test_a_killed_survey_goes_on(undisturbed: Ran, begun: Made) -> None:
    """Ended inside a shard: the part is not there; what is missing is told; then the rest is done."""
    made, key = begun, undisturbed.key

    def stop(progress: Progress) -> None:
        if progress.kind == "pruning: survey":
            raise InterruptedError

    with listening(stop), pytest.raises(InterruptedError):
        run_stage_shards(made.runs, made.capture, "pruning", key, [0], SURVEY)
    assert stage_parts_left(made.runs, made.capture, "pruning", key, SURVEY) == [0, 1]
    run_stage_shards(made.runs, made.capture, "pruning", key, [1], SURVEY)
    with pytest.raises(IncompleteRun, match=r"the survey of every shard .*, got 1 of 2 missing.*the same command"):
        finish_stage(made.runs, made.capture, "pruning", key, SURVEY)
    run_stage_shards(made.runs, made.capture, "pruning", key, [0], SURVEY)
    with pytest.raises(IncompleteRun, match="got its parts, not combined"):
        run_stage_shards(made.runs, made.capture, "pruning", key, [0])
    finish_stage(made.runs, made.capture, "pruning", key, SURVEY)
    interrupted(made, "pruning", key, steps=20, values=VALUES)
    assert run(made, "pruning", VALUES).bytes("pruning") == undisturbed.bytes("pruning")


def test_shards_tables_and_status_know_nothing_of_it(undisturbed: Ran, begun: Made) -> None:
    made, key = begun, undisturbed.key
    run_stage_shards(made.runs, made.capture, "pruning", key, [0, 1], SURVEY)
    finish_stage(made.runs, made.capture, "pruning", key, SURVEY)
    assert stage_parts_left(made.runs, made.capture, "pruning", key) == [0, 1]
    with pytest.raises(IncompleteRun, match="every shard of stage pruning, got 2 of 2 missing"):
        finish_stage(made.runs, made.capture, "pruning", key)
    record = Ran(made, "pruning", key).record()
    assert (record["shards_done"], record["shards_total"], record["rows"]) == (0, 2, 0)
    assert read_catalog(open_runs(made.runs), tables()).parts["pruning"] == ()
    whole = read_catalog(open_runs(undisturbed.made.runs), tables()).parts["pruning"]
    assert [Path(part.path).name for part in whole] == ["part-00000.parquet", "part-00001.parquet"]
    assert undisturbed.record()["shards_done"] == 2
    assert undisturbed.record()["rows"] == sum(part.rows for part in whole) == 4 * 2 * 12


def test_a_lost_or_damaged_part_of_it_is_found_and_made_again(undisturbed: Ran, tmp_path: Path) -> None:
    shutil.copytree(undisturbed.made.runs, tmp_path / "runs")
    made, key = replace(undisturbed.made, runs=str(tmp_path / "runs")), undisturbed.key
    before, layout = files(made, key), CaptureFolder.open(made.runs, made.capture).layout
    lost = Path(made.runs) / layout.partial("pruning", key, survey_part(1))
    lost.unlink()
    assert any(lost.name in problem and "missing" in problem for problem in verify_capture(made.runs, made.capture)[1])
    run(made, "pruning", VALUES)
    assert files(made, key) == before and verify_capture(made.runs, made.capture)[1] == []

    combined = Path(made.runs) / layout.partial("pruning", key, SURVEY)
    data = bytearray(combined.read_bytes())
    data[-3] ^= 1
    combined.write_bytes(data)
    (Path(made.runs) / layout.table_part("pruning", key, "00000")).unlink()
    with pytest.raises(DamagedPart, match=f"of checksum .*{combined.name}.*Delete this file"):
        run(made, "pruning", VALUES)
    combined.unlink()  # as it says
    assert run(made, "pruning", VALUES).bytes("pruning") == undisturbed.bytes("pruning")


def test_a_stage_that_surveys_nothing_has_none(undisturbed: Ran) -> None:
    made = undisturbed.made
    key = prepare_stage(made.runs, made.capture, "sink", {})
    assert stage_parts_left(made.runs, made.capture, "sink", key, SURVEY) == []
    assert not finish_stage(made.runs, made.capture, "sink", key, SURVEY)
