"""The operating system's refusals in the family's words: no space, not permitted, not there."""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from storage.errors import AGAIN, DamagedPart, MissingPart, StorageFull, StorageReadOnly, TheodoliteError

_FULL = {errno.ENOSPC, errno.EDQUOT}
_TOO_LARGE = {errno.EFBIG}
_NO_FILE = {errno.EISDIR, errno.ENOTDIR}
_NO_MEMORY = ("can't start new thread", "failed to map segment", "annot allocate memory")
"""What libraries say where the system gives them no more, whatever the type of their error."""
_READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}


@contextmanager
def translate_os_errors(where: str) -> Iterator[None]:
    """Turn any writer's "no space", "too large" and "not permitted" into the family's; `where` is what is written."""
    try:
        yield
    except TheodoliteError:
        raise
    except OSError as error:
        if (known := _known(error, where)) is None:
            raise
        raise known from error


def _known(error: OSError, where: str) -> TheodoliteError | None:
    """The family's error for one of the system's; None where it has none."""
    for numbers, of_place in _FAMILY:
        if error.errno in numbers:
            return of_place(where)
    return None


def system_error(error: BaseException) -> TheodoliteError | None:
    """The family's error for a limit of the machine that a library met on its own: a full or closed disk, memory,
    threads, open files. None where an error, and what caused it, is none of these.
    """
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and (known := _known(seen, str(seen.filename or tempfile.gettempdir()))):
            return known
        if isinstance(seen, OSError) and seen.errno in (errno.EMFILE, errno.ENFILE):
            remedy = f"Raise the limit (`ulimit -n 4096`) and {AGAIN}."
            return TheodoliteError("to open another file", got="as many open files as the limit allows", remedy=remedy)
        if isinstance(seen, MemoryError) or any(words in str(seen) for words in _NO_MEMORY):
            remedy = f"What was published stays: raise the limit (`ulimit -a` lists them), or free memory, and {AGAIN}."
            return TheodoliteError("enough memory and threads", got=str(seen) or "no memory left", remedy=remedy)
        seen = seen.__cause__ or seen.__context__
    return None


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


_FAMILY: tuple[tuple[set[int], Callable[[str], TheodoliteError]], ...] = (
    (_FULL, _full_error),
    (_TOO_LARGE, _too_large_error),
    (_READ_ONLY, read_only_error),
    (_NO_FILE, not_a_file_error),
)


def missing_error(where: str) -> MissingPart:
    return MissingPart(
        "a file", got="nothing there", where=where, remedy="Run `theodolite verify` to see what is lost."
    )
