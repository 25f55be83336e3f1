"""The folder of runs: whole files or none, clear refusals, locks that a dead process does not hold."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import MissingPart, StorageFull, StorageReadOnly, StoreError, UsageError
from storage.filesystem import Filesystem, LocalFolder, free_bytes_at, open_runs, translate_os_errors

ROOT = Path(__file__).resolve().parents[2]


def names(fs: Filesystem, folder: str) -> list[str]:
    """Everything in a folder, hidden files too."""
    return sorted(p.name for p in Path(fs.absolute(folder)).iterdir())


def test_what_is_written_is_read_listed_and_removed(fs: Filesystem) -> None:
    fs.write_bytes("b/x/2", b"two")
    fs.write_bytes("b/1", b"one")
    fs.write_bytes("a", b"")
    assert fs.read_bytes("b/x/2") == b"two"
    assert (fs.size("b/1"), fs.exists("b/x"), fs.exists("c")) == (3, True, False)
    assert fs.list("") == ["a", "b/1", "b/x/2"]
    assert fs.list("b") == ["b/1", "b/x/2"]
    assert (fs.list("nowhere"), fs.children("nowhere"), fs.children("")) == ([], [], ["a", "b"])
    fs.remove("b")
    fs.remove("b")
    fs.remove("a")
    assert fs.list("") == []


def test_a_write_replaces_and_leaves_nothing_else(fs: Filesystem) -> None:
    fs.write_bytes("a/f", b"old and long")
    fs.write_bytes("a/f", b"new")
    assert names(fs, "a") == ["f"]
    assert fs.read_bytes("a/f") == b"new"


def test_a_failed_write_leaves_the_old_file(fs: Filesystem, monkeypatch: pytest.MonkeyPatch) -> None:
    fs.write_bytes("a/f", b"old")

    def full(_handle: int) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageFull, match=r"room to write .*a/f, got [\d,]+ bytes free.*free space and run the same"):
        fs.write_bytes("a/f", b"new")
    assert fs.read_bytes("a/f") == b"old"
    assert names(fs, "a") == ["f"]


def test_what_a_killed_writer_left_goes_with_the_next_write(fs: Filesystem) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    fs.write_bytes("a/f", b"x")
    Path(fs.absolute(f"a/.f.{dead.pid}-0a0b0c0d")).write_bytes(b"half")
    Path(fs.absolute(f"a/.f.{os.getppid()}-0a0b0c0d")).write_bytes(b"of a living process")
    assert fs.list("a") == ["a/f"]
    fs.write_bytes("a/f", b"y")
    assert names(fs, "a") == [f".f.{os.getppid()}-0a0b0c0d", "f"]


def test_rename_replaces_files_and_folders(fs: Filesystem) -> None:
    fs.write_bytes("new/a", b"a")
    fs.write_bytes("old/b", b"b")
    fs.rename("new", "old")
    assert fs.list("") == ["old/a"]
    fs.write_bytes("f", b"f")
    fs.rename("f", "deep/er/f")
    fs.write_bytes("g", b"g")
    fs.rename("g", "deep/er/f")
    assert fs.read_bytes("deep/er/f") == b"g"
    with pytest.raises(MissingPart, match=r"nowhere"):
        fs.rename("nowhere", "old")
    assert fs.list("old") == ["old/a"]


def test_streams_write_and_read(fs: Filesystem) -> None:
    with fs.open_output("s/f") as file:
        file.write(b"abc")
    with fs.open_input("s/f") as file:
        file.seek(1)
        assert file.read() == b"bc"


@pytest.mark.parametrize("call", ["read_bytes", "size", "open_input"])
def test_a_missing_file_is_named(fs: Filesystem, call: str) -> None:
    fs.write_bytes("file", b"")
    for path in ("gone/f", "file/below"):
        with pytest.raises(MissingPart, match=rf"expected a file, got nothing there, in .*{path}") as caught:
            getattr(fs, call)(path)
        assert isinstance(caught.value, FileNotFoundError)


@given(st.sampled_from(["../a", "a/../../b", "/etc/passwd", ".."]))
def test_no_path_leaves_the_folder(path: str) -> None:
    with pytest.raises(ValueError, match="inside the folder of runs"):
        LocalFolder("/nowhere").absolute(path)


def test_opening_a_place_of_runs(tmp_path: Path) -> None:
    with pytest.raises(MissingPart, match=r"a folder of runs, got nothing there, in .*runs\. Run `theodolite run`"):
        open_runs(str(tmp_path / "runs"))
    assert open_runs(str(tmp_path / "runs"), create=True).where == str(tmp_path / "runs")
    assert open_runs(str(tmp_path / "runs")).free_bytes() > 0
    with pytest.raises(UsageError, match="Object storage is not in this version") as caught:
        open_runs("s3://bucket/runs", create=True)
    assert caught.value.exit_code == 2
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UsageError, match="got a file"):
        open_runs(str(tmp_path / "file"), create=True)


@pytest.mark.parametrize(
    ("number", "error"),
    [
        (errno.ENOSPC, StorageFull),
        (errno.EDQUOT, StorageFull),
        (errno.EFBIG, StorageFull),
        (errno.EROFS, StorageReadOnly),
        (errno.EACCES, StorageReadOnly),
        (errno.EPERM, StorageReadOnly),
    ],
)
def test_refusals_of_the_system_are_translated(tmp_path: Path, number: int, error: type[Exception]) -> None:
    where = str(tmp_path / "not" / "there" / "file")
    with pytest.raises(error, match=where) as caught, translate_os_errors(where):
        raise OSError(number, "refused")
    assert isinstance(caught.value.__cause__, OSError)


def test_other_errors_pass_untranslated(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="I/O") as caught, translate_os_errors(str(tmp_path)):
        raise OSError(errno.EIO, "I/O")
    assert type(caught.value) is OSError
    with pytest.raises(MissingPart, match="a part"), translate_os_errors(str(tmp_path)):
        raise MissingPart("a part")


def test_a_read_only_folder_is_refused(small_disk: Callable[[str], Filesystem]) -> None:
    small_disk("size=1m").write_bytes("a", b"x")
    fs = small_disk("ro")
    assert fs.read_bytes("a") == b"x"
    for write in (
        lambda: fs.write_bytes("b", b"x"),
        lambda: fs.open_output("c"),
        lambda: fs.remove("a"),
        lambda: fs.rename("a", "b"),
        lambda: fs.lock("l").__enter__(),
        lambda: open_runs(fs.where, create=True),
        lambda: open_runs(fs.where + "/runs", create=True),
    ):
        with pytest.raises(StorageReadOnly, match=r"leave to write .*Make it writable, or name another folder"):
            write()


def test_a_full_disk_is_said(small_disk: Callable[[str], Filesystem]) -> None:
    fs = small_disk("size=64k")
    fs.write_bytes("a", b"x" * 20_000)
    with pytest.raises(StorageFull, match=r"room to write .*b, got [\d,]+ bytes free"):
        fs.write_bytes("b", b"x" * 100_000)
    assert fs.list("") == ["a"]
    assert names(fs, "") == ["a"]


def test_a_lock_keeps_threads_apart_and_says_when_one_waits(fs: Filesystem) -> None:
    events: list[str] = []
    waiting = threading.Event()

    def other() -> None:
        with fs.lock("locks/a", waiting.set):
            events.append("second")

    with fs.lock("locks/a", lambda: events.append("never")):
        thread = threading.Thread(target=other)
        thread.start()
        assert waiting.wait(10)
        events.append("first")
    thread.join(10)
    assert events == ["first", "second"]


def test_a_killed_process_frees_its_lock(fs: Filesystem) -> None:
    holder = (
        "import sys; from storage.filesystem import open_runs\n"
        "with open_runs(sys.argv[1]).lock('locks/a'): print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holder, fs.where], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        waited: list[bool] = []
        with fs.lock("locks/a", lambda: (waited.append(True), process.kill())[0]):
            assert waited == [True]


@pytest.mark.parametrize("create", [True, False])
def test_a_folder_below_a_file_names_the_file(tmp_path: Path, create: bool) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError) as caught:
        open_runs(str(tmp_path / "file" / "sub" / "runs"), create=create)
    assert str(caught.value) == (f"expected a folder, got a file, in {tmp_path / 'file'}. Name another folder.")
    with pytest.raises(UsageError, match="expected a folder, got a file"):
        free_bytes_at(str(tmp_path / "file" / "sub"))


@pytest.mark.parametrize("create", [True, False])
def test_no_name_is_no_folder(create: bool) -> None:
    with pytest.raises(UsageError, match="expected a folder, got ''"):
        open_runs("", create=create)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is a folder in which nothing can be made")
def test_a_folder_that_cannot_be_made_is_said() -> None:
    with pytest.raises(StoreError, match=r"a folder that can be made, got .*, in /proc/runs\. Name another folder"):
        open_runs("/proc/runs", create=True)


def test_a_name_too_long_is_said(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="a folder that can be made, got file name too long"):
        open_runs(str(tmp_path / ("x" * 300)), create=True)
