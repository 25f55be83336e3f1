"""Training on a tiny budget: it learns, and interrupted anywhere it ends with the same bytes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from storage.errors import DamagedPart, TrainingDiverged, UsageError
from tasks.training.folder import CHECKPOINT, LOG, TrainingFolder
from tasks.training.loop import TrainResult, train
from tasks.training.optimiser import Optimiser
from tasks.training.progress import MeasureProgress, TrainProgress
from tasks.training.settings import TrainSettings

SETTINGS = TrainSettings(steps=12, batch=2, context=16, layers=1, heads=2, width=16)
TEXT = ["the cat sat on the mat and the dog ran after the cat. " * 20]
FILES = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}


def run(out: Path, progress: Callable[[TrainProgress], None] | None = None, every: int = 5) -> TrainResult:
    torch.set_num_threads(1)
    return train(TEXT, str(out), SETTINGS, checkpoint_every=every, progress=progress)


def contents(out: Path) -> dict[str, bytes]:
    files = {p.name: p.read_bytes() for p in out.iterdir() if not p.name.startswith(".")}
    log = json.loads(files.pop(LOG))
    for name in ("seconds", "measuring_seconds"):
        log["result"].pop(name)
    return {**files, LOG: json.dumps(log).encode()}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("undisturbed")
    result = run(out)
    assert (result.resumed_at, result.already_done, result.steps) == (None, False, 12)
    found = contents(out)
    assert set(found) == {*FILES, LOG}
    return found


class Stop(BaseException):
    """What Ctrl-C raises, but ours."""


def stop_after(step: int) -> Callable[[TrainProgress], None]:
    def tell(now: TrainProgress) -> None:
        if now.step == step:
            raise Stop

    return tell


@pytest.mark.parametrize(("step", "resumes_at"), [(1, 0), (5, 5), (9, 5), (12, 12)])
def test_interrupted_and_resumed_is_undisturbed(
    tmp_path: Path, undisturbed: dict[str, bytes], step: int, resumes_at: int
) -> None:
    with pytest.raises(Stop):
        run(tmp_path, stop_after(step))
    assert (tmp_path / CHECKPOINT).exists()
    assert not (tmp_path / "model.safetensors").exists()
    assert run(tmp_path).resumed_at == resumes_at
    assert contents(tmp_path) == undisturbed


def test_how_often_a_checkpoint_is_kept_changes_nothing(tmp_path: Path, undisturbed: dict[str, bytes]) -> None:
    run(tmp_path, every=1)
    assert contents(tmp_path) == undisturbed


@pytest.mark.parametrize("file", [*sorted(FILES), LOG])
def test_stopped_between_two_files_of_the_model(
    tmp_path: Path, undisturbed: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    write = TrainingFolder.write

    def stops(self: TrainingFolder, name: str, data: bytes) -> None:
        if name == file:
            raise Stop
        write(self, name, data)

    with monkeypatch.context() as patch, pytest.raises(Stop):
        patch.setattr(TrainingFolder, "write", stops)
        run(tmp_path)
    assert not (tmp_path / file).exists()
    run(tmp_path)
    assert contents(tmp_path) == undisturbed


KILLED = """
import os, signal, sys, torch
from pathlib import Path
from tests.tasks.training.test_train import run
run(Path(sys.argv[1]), lambda now: os.kill(os.getpid(), signal.SIGKILL) if now.step == 8 else None)
"""


def test_killed_and_resumed_is_undisturbed(tmp_path: Path, undisturbed: dict[str, bytes]) -> None:
    root = Path(__file__).resolve().parents[3]
    ended = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], cwd=root, check=False, timeout=120)
    assert ended.returncode == -signal.SIGKILL
    assert run(tmp_path).resumed_at == 5
    assert contents(tmp_path) == undisturbed


def test_a_finished_run_is_not_done_again(tmp_path: Path) -> None:
    first = run(tmp_path)
    times = {p.name: p.stat().st_mtime_ns for p in tmp_path.iterdir() if not p.name.startswith(".")}
    again = run(tmp_path)
    assert again.already_done
    assert (again.held_out_nats, again.seconds) == (first.held_out_nats, first.seconds)
    assert {p.name: p.stat().st_mtime_ns for p in tmp_path.iterdir() if not p.name.startswith(".")} == times


def test_two_at_once_do_the_work_once(tmp_path: Path, undisturbed: dict[str, bytes]) -> None:
    waited, results = threading.Event(), []
    second = threading.Thread(target=lambda: results.append(train(TEXT, str(tmp_path), SETTINGS, on_wait=waited.set)))

    def start_second(now: TrainProgress) -> None:
        if now.step == 3:
            second.start()
            assert waited.wait(30)

    run(tmp_path, start_second)
    second.join(30)
    assert [r.already_done for r in results] == [True]
    assert contents(tmp_path) == undisturbed


def test_another_run_that_was_quicker_to_take_the_folder(
    tmp_path: Path, undisturbed: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = TrainingFolder.lock

    def late(self: TrainingFolder, on_wait: Callable[[], None] | None) -> AbstractContextManager[None]:
        monkeypatch.undo()
        run(tmp_path)
        return lock(self, on_wait)

    monkeypatch.setattr(TrainingFolder, "lock", late)
    with pytest.raises(UsageError, match=r"\(seed = 2\), got one with seed = 1337"):
        train(TEXT, str(tmp_path), replace(SETTINGS, seed=2))
    assert contents(tmp_path) == undisturbed


def test_another_seed_gives_another_model(tmp_path: Path, undisturbed: dict[str, bytes]) -> None:
    torch.set_num_threads(1)
    train(TEXT, str(tmp_path), TrainSettings(12, 2, 16, seed=2, layers=1, heads=2, width=16))
    assert contents(tmp_path)["model.safetensors"] != undisturbed["model.safetensors"]


def test_a_folder_with_something_else_is_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match=r"an empty folder.*got thesis\.tex, in .*Name another folder") as caught:
        run(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("begun", [True, False])
def test_a_folder_of_another_run_is_refused(tmp_path: Path, begun: bool) -> None:
    if begun:
        with pytest.raises(Stop):
            run(tmp_path, stop_after(2))
    else:
        run(tmp_path)
    before = {p: p.read_bytes() for p in tmp_path.iterdir()}
    with pytest.raises(UsageError, match=r"\(steps = 13\), got one with steps = 12, in .*settings that it was begun"):
        train(TEXT, str(tmp_path), TrainSettings(13, 2, 16, layers=1, heads=2, width=16))
    with pytest.raises(UsageError, match="text_digest"):
        train([TEXT[0] + "more"], str(tmp_path), SETTINGS)
    assert {p: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_a_damaged_checkpoint_or_log_is_named(tmp_path: Path) -> None:
    with pytest.raises(Stop):
        run(tmp_path, stop_after(7))
    path = tmp_path / CHECKPOINT
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[-9] ^= 1
    for damaged in (whole[: len(whole) // 2], bytes(flipped), b""):
        path.write_bytes(damaged)
        with pytest.raises(DamagedPart, match=r"what a training run wrote.*checkpoint\.safetensors.*train again"):
            run(tmp_path)
    for log in ("{}", '{"identity": 1, "result": {}}'):
        (tmp_path / LOG).write_text(log)
        with pytest.raises(DamagedPart, match=r"training_log\.json"):
            run(tmp_path)


@pytest.mark.parametrize("name", ["identity", "step", "losses", "seconds", "digest"])
def test_notes_that_lost_a_name_are_damage_too(tmp_path: Path, name: str) -> None:
    with pytest.raises(Stop):
        run(tmp_path, stop_after(7))
    path = tmp_path / CHECKPOINT
    whole, other = path.read_bytes(), name[:-1] + chr(ord(name[-1]) ^ 1)
    damaged = whole.replace(f'\\"{name}\\"'.encode(), f'\\"{other}\\"'.encode())
    assert len(damaged) == len(whole) and damaged != whole
    path.write_bytes(damaged)
    with pytest.raises(DamagedPart, match=r"what a training run wrote.*checkpoint\.safetensors.*train again"):
        run(tmp_path)


def test_a_checkpoint_every_zero_steps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a checkpoint every 1 or more steps, got 0"):
        run(tmp_path, every=0)


def test_it_learns_and_tells_how_it_goes(tmp_path: Path) -> None:
    told: list[TrainProgress] = []
    settings = TrainSettings(steps=250, batch=8, context=32, layers=2, heads=2, width=32)
    torch.set_num_threads(1)
    measured: list[MeasureProgress] = []
    result = train(TEXT, str(tmp_path), settings, progress=told.append, measuring=measured.append)
    assert [t.step for t in told] == list(range(1, 251))
    assert told[0].loss > 4.0  # about the log of the vocabulary
    assert result.held_out_nats < 1.2
    assert (told[-1].seconds_left, told[-1].steps) == (0.0, 250)
    assert all(t.characters_per_second > 0 for t in told)
    assert [m.windows for m in measured] == list(range(measured[0].of + 1)) and len(measured) > 2
    assert result.measuring_seconds is not None and 0 <= result.measuring_seconds < result.seconds
    losses = json.loads((tmp_path / LOG).read_text())["losses"]
    assert [loss["step"] for loss in losses] == [1, 100, 200, 250]
    assert result.held_out_nats < losses[1]["held_out"] < losses[0]["held_out"]


def damage_at(step: int, value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the optimiser's step of that number (from 1) put a value into all weights of one matrix."""
    move = Optimiser.step

    def moves(self: Optimiser, number: int) -> None:
        move(self, number)
        if number + 1 == step:
            with torch.no_grad():
                max(self._parameters, key=torch.numel).fill_(value)

    monkeypatch.setattr(Optimiser, "step", moves)


@pytest.mark.parametrize(
    ("step", "value", "kept", "said"),
    [
        (
            7,
            float("nan"),
            5,
            r"a finite loss, got nan nats per character, in training, step 8\. .*smaller learning rate",
        ),
        (10, float("inf"), 5, r"finite weights, got NaN or infinity in .*, in training, after step 10\."),
        (12, float("nan"), 10, r"a finite loss, got nan nats per character, in training, after step 12\."),
        (12, 1e5, 12, r"a finite loss, got nan .*, in training, the finished model's float16 weights\."),
    ],
    ids=["loss", "weights", "held-out", "float16"],
)
def test_training_that_diverges_stops_and_keeps_the_last_good_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, value: float, kept: int, said: str
) -> None:
    with monkeypatch.context() as patch, pytest.raises(TrainingDiverged, match=said):
        damage_at(step, value, patch)
        run(tmp_path)
    assert {p.name for p in tmp_path.iterdir() if not p.name.startswith(".")} == {CHECKPOINT}
    if step < 12:
        assert run(tmp_path).resumed_at == kept


def test_a_rate_or_seed_that_cannot_be_leaves_no_folder(tmp_path: Path) -> None:
    for change in ({"muon_rate": float("inf")}, {"seed": 10**22}):
        with pytest.raises(UsageError):
            train(TEXT, str(tmp_path / "out"), replace(SETTINGS, **change))
    assert not (tmp_path / "out").exists()
