"""Disks that are full or read-only: said with what was being written; what was published stays, and can go on."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence

import pytest

from storage.errors import StorageFull, StorageReadOnly, TheodoliteError
from storage.filesystem import Filesystem, LocalFolder, translate_os_errors
from storage.layout import Layout
from storage.manifest import Manifest
from storage.os_errors import system_error
from storage.tensors import ActivationStore
from tests.storage.stores import BATCHES, CAPTURE, write_shard, write_store

LAYOUT = Layout(CAPTURE)


class Filling(LocalFolder):
    """A folder on a disk that takes so many bytes and then fails with the given error."""

    def __init__(self, where: str, room: int, number: int) -> None:
        super().__init__(where)
        self.room, self.number = room, number

    def write_bulk(self, path: str, parts: Sequence[bytes]) -> None:
        with translate_os_errors(self.absolute(path)):
            self.room -= sum(len(part) for part in parts)
            if self.room < 0:
                raise OSError(self.number, "refused")
        super().write_bulk(path, parts)


@pytest.mark.parametrize(
    ("number", "error"),
    [
        (errno.ENOSPC, StorageFull),
        (errno.EDQUOT, StorageFull),
        (errno.EFBIG, StorageFull),
        (errno.EROFS, StorageReadOnly),
        (errno.EACCES, StorageReadOnly),
    ],
    ids=["full", "quota", "too large", "read-only", "not permitted"],
)
def test_a_disk_that_refuses_is_said_and_the_shard_can_be_written_again(
    fs: Filesystem, number: int, error: type[TheodoliteError]
) -> None:
    write_store(fs, shards=0)
    with pytest.raises(error, match=r"to write .*staging/shard-0/batch-0") as caught:
        write_shard(Filling(fs.where, 5000, number))
    said = str(caught.value)
    assert ("run the same command again" in said) == (error is StorageFull)
    assert ("raise the limit (`ulimit -f unlimited`)" in said) == (number == errno.EFBIG)
    assert ("free space" in said) == (number in {errno.ENOSPC, errno.EDQUOT})
    assert ActivationStore.open(fs, CAPTURE).shards == []
    write_shard(fs)
    assert Manifest(fs, LAYOUT).verify(LAYOUT.shard_record(0)) == []


def test_a_real_full_disk_keeps_what_was_published(small_disk: Callable[[str], Filesystem]) -> None:
    fs = small_disk("size=320k")
    write_store(fs)
    with pytest.raises(StorageFull, match=r"room to write .*, got [\d,]+ bytes free.*run the same command again"):
        for index in range(1, 50):
            write_shard(fs, index)
    done = ActivationStore.open(fs, CAPTURE).shards
    assert done
    assert all(Manifest(fs, LAYOUT).verify(LAYOUT.shard_record(i)) == [] for i in done)
    fs = small_disk("size=4m")
    write_shard(fs, len(done))
    assert ActivationStore.open(fs, CAPTURE).shards == [*done, len(done)]
    assert len(list(ActivationStore.open(fs, CAPTURE).shard(len(done)).layer(0))) == sum(map(len, BATCHES))


def test_a_store_on_a_read_only_disk_is_read_and_not_written(small_disk: Callable[[str], Filesystem]) -> None:
    write_store(small_disk("size=4m"))
    fs = small_disk("ro")
    assert len(list(ActivationStore.open(fs, CAPTURE).shard(0).layer(0))) == sum(map(len, BATCHES))
    with pytest.raises(StorageReadOnly, match=r"leave to write .*Make it writable, or name another folder with --runs"):
        write_shard(fs, 1)


def caused(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/tmp/x"), "room to write /tmp/x"),
        (RuntimeError("can't start new thread"), "enough memory and threads, got can't start new thread"),
        (MemoryError(), "enough memory and threads, got no memory left"),
        (ImportError("x.so: failed to map segment from shared object"), "enough memory and threads"),
        (OSError(errno.EMFILE, "Too many open files"), "expected to open another file"),
        (caused(ValueError("of a library"), OSError(errno.EFBIG, "File too large", "/tmp/x")), "a limit on the size"),
    ],
)
def test_limits_of_the_machine_that_a_library_meets_are_errors_of_the_family(error: Exception, message: str) -> None:
    known = system_error(error)
    assert known is not None and message in str(known)


def test_a_fault_of_the_program_is_no_limit_of_the_machine() -> None:
    assert system_error(caused(ValueError("x"), KeyError("y"))) is None
    assert system_error(OSError(errno.ENOENT, "No such file", "/tmp/x")) is None
