"""A stage that was interrupted goes on where it was: nothing is computed twice, and the bytes are the same."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from storage.errors import IncompleteRun
from tasks.capture.folder import CaptureFolder
from tasks.models.replay import Replayer
from tasks.progress import Progress, listening
from tasks.stages.run import finish_stage, prepare_stage, run_stage_shards
from tests.tasks.capture.made_captures import Made, save_model
from tests.tasks.stages.running import Ran, captured, run

TEXT = "The quick brown fox jumps over the lazy dog"
GRID = {"rates": "0.1,0.5", "scores": "vwon,cw_intra,random", "scopes": "entry,token", "draws": 2, "layers": "each,all"}
Pass = tuple[int, tuple[tuple[int, int], ...]]


class Stop(Exception):
    """Ctrl-C, or the machine going away, at a step forward."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """A model one of whose values is nothing: in layer 1, heads 0 and 1 write nothing, and their scores are 0/0."""
    folder = tmp_path_factory.mktemp("whole")
    save_model(folder / "model")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "model")
    with torch.no_grad():
        model.model.layers[1].self_attn.v_proj.weight[:8] = 0
    model.save_pretrained(folder / "model")
    return run(captured(folder, text=TEXT, shard_tokens=26, batch_tokens=13), "masking", GRID)


@pytest.fixture
def unfinished(undisturbed: Ran, tmp_path: Path) -> Made:
    """The same capture, its stage not begun."""
    made = undisturbed.made
    shutil.copytree(made.runs, tmp_path / "runs", ignore=shutil.ignore_patterns("masking"))
    return replace(made, runs=str(tmp_path / "runs"))


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Pass]]:
    """What every forward pass was of: the layer, and each row's document and condition."""
    seen: list[Pass] = []
    scored = Replayer._scored

    def counted(self: Replayer, layer: int, rows: Any, conditions: Any, *more: Any) -> Any:
        seen.append((layer, tuple((start.document, hash(conditions[at])) for start, at in rows)))
        return scored(self, layer, rows, conditions, *more)

    monkeypatch.setattr(Replayer, "_scored", counted)
    yield seen


def stop_after(steps: int, made: Made, key: str, shards: list[int]) -> float:
    """Run these shards until they have gone so many steps forward; how far they had come."""
    came = 0.0

    def listener(progress: Progress) -> None:
        nonlocal came, steps
        came, steps = came + progress.step, steps - 1
        if steps < 0:
            raise Stop

    with listening(listener), pytest.raises(Stop):
        run_stage_shards(made.runs, made.capture, "masking", key, shards)
    return came


def checkpoints(made: Made, key: str) -> list[Path]:
    layout = CaptureFolder.open(made.runs, made.capture).layout
    folder = Path(made.runs) / layout.checkpoints_root("masking", key)
    return sorted(folder.iterdir()) if folder.exists() else []


def finished(made: Made, key: str) -> Ran:
    finish_stage(made.runs, made.capture, "masking", key)
    return Ran(made, "masking", key)


def test_pieces_that_were_finished_are_not_computed_again(
    undisturbed: Ran, unfinished: Made, passes: list[Pass]
) -> None:
    made, key = unfinished, undisturbed.key
    assert prepare_stage(made.runs, made.capture, "masking", GRID) == key
    for steps in (7, 60, 150):
        stop_after(steps, made, key, [0, 1])
    tries = len(passes)
    assert len(checkpoints(made, key)) > 2
    kept = {path: path.read_bytes() for path in checkpoints(made, key)}
    came: list[float] = []
    with listening(lambda progress: came.append(progress.step)):
        run_stage_shards(made.runs, made.capture, "masking", key, [0, 1])
    assert all(path.read_bytes() == data for path, data in kept.items())
    after_a_try = passes[tries:]
    run_stage_shards(made.runs, made.capture, "masking", key, [0, 1])
    assert len(passes) == tries + len(after_a_try)

    ran = finished(made, key)
    assert ran.bytes("masking") == undisturbed.bytes("masking")
    assert ran.record()["quality"] == undisturbed.record()["quality"]
    assert checkpoints(made, key) == []
    layout = CaptureFolder.open(made.runs, made.capture).layout
    assert not (Path(made.runs) / layout.checkpoint_records_root("masking", key)).exists()
    assert sum(came) == pytest.approx(4)  # documents, those of earlier tries among them

    fresh = replace(made, runs=made.runs + "-again")
    shutil.copytree(undisturbed.made.runs, fresh.runs, ignore=shutil.ignore_patterns("masking"))
    before = len(passes)
    run(fresh, "masking", GRID)
    whole = passes[before:]
    assert set(rows(after_a_try)) < set(rows(whole))
    assert len(after_a_try) < len(whole)
    assert len(rows(after_a_try)) == len(set(rows(after_a_try)))


def rows(passes: list[Pass]) -> list[tuple[int, int, int]]:
    """(layer, document) of each row, numbered where they repeat."""
    seen: dict[tuple[int, int], int] = {}
    found = []
    for layer, of_pass in passes:
        for document, _ in of_pass:
            seen[layer, document] = seen.get((layer, document), -1) + 1
            found.append((layer, document, seen[layer, document]))
    return found


def test_what_is_undefined_is_counted_by_hand_and_after_a_resume(undisturbed: Ran) -> None:
    """Two of four heads of layer 1; vwon and cw_intra, by entries and by tokens; alone, and among all layers."""
    lengths = [n for shard in undisturbed.made.store.shards for n in undisturbed.made.store.shard(shard).lengths]
    candidates = sum((n - 1) * n // 2 for n in lengths)
    assert undisturbed.record()["quality"] == {"undefined_scores": 2 * 2 * 2 * 2 * candidates}


def test_a_damaged_checkpoint_is_computed_again(undisturbed: Ran, unfinished: Made) -> None:
    made, key = unfinished, undisturbed.key
    prepare_stage(made.runs, made.capture, "masking", GRID)
    stop_after(150, made, key, [0])
    damaged = checkpoints(made, key)[0]
    data = bytearray(damaged.read_bytes())
    data[-3] ^= 1
    damaged.write_bytes(data)
    run_stage_shards(made.runs, made.capture, "masking", key, [0, 1])
    assert finished(made, key).bytes("masking") == undisturbed.bytes("masking")


def test_a_checkpoint_cut_short_is_computed_again(undisturbed: Ran, unfinished: Made) -> None:
    made, key = unfinished, undisturbed.key
    prepare_stage(made.runs, made.capture, "masking", GRID)
    stop_after(150, made, key, [0])
    cut = checkpoints(made, key)[0]
    cut.write_bytes(cut.read_bytes()[:-5])
    run_stage_shards(made.runs, made.capture, "masking", key, [0, 1])
    assert finished(made, key).bytes("masking") == undisturbed.bytes("masking")


def test_other_parameters_do_not_take_what_was_kept(undisturbed: Ran, unfinished: Made) -> None:
    """Pieces are kept under the stage's key: another grid begins anew."""
    made, key = unfinished, undisturbed.key
    prepare_stage(made.runs, made.capture, "masking", GRID)
    stop_after(60, made, key, [0])
    kept = {path: path.read_bytes() for path in checkpoints(made, key)}
    other = run(made, "masking", {**GRID, "rates": "0.1,0.4"})
    assert other.key != key and other.bytes("masking") != undisturbed.bytes("masking")
    assert {path: path.read_bytes() for path in checkpoints(made, key)} == kept


def test_a_stage_with_shards_missing_is_not_finished(undisturbed: Ran, unfinished: Made) -> None:
    made, key = unfinished, undisturbed.key
    prepare_stage(made.runs, made.capture, "masking", GRID)
    run_stage_shards(made.runs, made.capture, "masking", key, [1])
    with pytest.raises(IncompleteRun, match=r"every shard of stage masking, got 1 of 2 missing \(0\)"):
        finish_stage(made.runs, made.capture, "masking", key)
    assert checkpoints(made, key) != []  # until the stage is done
    assert Ran(made, "masking", key).record()["status"] == "partial"
