"""The operating system's refusals in the family's words: no space, not permitted, not there."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from storage.errors import AGAIN, DamagedPart, MissingPart, StorageFull, StorageReadOnly, TheodoliteError

_FULL = {errno.ENOSPC, errno.EDQUOT}
_TOO_LARGE = {errno.EFBIG}
_NO_FILE = {errno.EISDIR, errno.ENOTDIR}
_READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}


@contextmanager
def translate_os_errors(where: str) -> Iterator[None]:
    """Turn any writer's "no space", "too large" and "not permitted" into the family's; `where` is what is written."""
    try:
        yield
    except TheodoliteError:
        raise
    except OSError as error:
        if error.errno in _FULL:
            raise _full_error(where) from error
        if error.errno in _TOO_LARGE:
            raise _too_large_error(where) from error
        if error.errno in _READ_ONLY:
            raise read_only_error(where) from error
        if error.errno in _NO_FILE:
            raise not_a_file_error(where) from error
        raise


def _nearest_folder(where: str) -> Path:
    path = Path(where)
    while not path.is_dir():
        path = path.parent
    return path


def _full_error(where: str) -> StorageFull:
    free = shutil.disk_usage(_nearest_folder(where)).free
    return StorageFull(
        f"room to write {where}",
        got=f"{free:,} bytes free",
        where=str(_nearest_folder(where)),
        remedy=f"What was published stays: free space and {AGAIN}.",
    )


def _too_large_error(where: str) -> StorageFull:
    """A limit on the size of one file is another want of room, which no freeing of space cures."""
    return StorageFull(
        f"room to write {where}",
        got="a limit on the size of a file",
        where=str(_nearest_folder(where)),
        remedy=f"What was published stays: raise the limit (`ulimit -f unlimited`) and {AGAIN}.",
    )


def read_only_error(where: str) -> StorageReadOnly:
    return StorageReadOnly(
        f"leave to write {where}",
        got="a folder that is read-only or belongs to someone else",
        where=str(_nearest_folder(where)),
        remedy="Make it writable, or name another folder with --runs.",
    )


def not_a_file_error(where: str) -> DamagedPart:
    return DamagedPart(
        "a file", got="a folder, or a file where a folder should be", where=where, remedy="Remove it and run again."
    )


def missing_error(where: str) -> MissingPart:
    return MissingPart(
        "a file", got="nothing there", where=where, remedy="Run `theodolite verify` to see what is lost."
    )
