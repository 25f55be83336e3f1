"""Where runs lie, behind one small interface: a local folder now; object storage implements the same."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, BinaryIO, Protocol

from storage.bulk import write_bulk
from storage.errors import MissingPart, StoreError, TheodoliteError, UsageError
from storage.os_errors import missing_error, not_a_file_error, read_only_error, translate_os_errors

if TYPE_CHECKING:
    from zarr.abc.store import Store

_LOCK_POLL_S = 0.1

Names = list[str]
"""Paths or names; said here since the method `list` hides the type in the classes below."""

__all__ = ["Filesystem", "LocalFolder", "open_runs", "translate_os_errors"]


class Filesystem(Protocol):
    """What the rest of storage needs of the place where runs lie. Paths are POSIX text relative to `where`.

    A name that begins with a dot is unfinished work: it is never listed.
    """

    where: str

    def absolute(self, path: str) -> str:
        """The path as DuckDB or a person is given it."""

    def read_bytes(self, path: str) -> bytes:
        """A file's content; MissingPart if it is not there."""

    def write_bytes(self, path: str, data: bytes) -> None:
        """Put a file in place whole or not at all, and on the disk before this returns."""

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int:
        """A file's bytes; MissingPart if it is not there."""

    def list(self, prefix: str) -> Names:
        """Every file under a folder, at any depth, sorted; empty if the folder is not there."""

    def children(self, path: str) -> Names:
        """Names directly inside a folder, sorted; empty if it is not there."""

    def rename(self, source: str, target: str) -> None:
        """Move a file or folder; whatever lay at the target is replaced."""

    def remove(self, path: str) -> None:
        """Remove a file or a tree; nothing there is fine."""

    def free_bytes(self) -> int: ...

    def open_output(self, path: str) -> BinaryIO:
        """A new file to be written from its start to its end; not in place atomically, so only for staging."""

    def write_bulk(self, path: str, parts: Sequence[bytes]) -> None:
        """A new file of these parts, not read again soon; not in place atomically, so only for staging."""

    def open_input(self, path: str) -> BinaryIO:
        """A file to be read, seekable; MissingPart if it is not there."""

    def zarr_store(self, path: str, *, read_only: bool) -> Store: ...

    def lock(self, path: str, on_wait: Callable[[], None] | None = None) -> AbstractContextManager[None]:
        """Hold a lock between processes and threads; freed when the process ends in any way."""


def open_runs(where: str, *, create: bool = False) -> Filesystem:
    """The place of runs called `where`; with `create` it is made if absent and must be writable.

    Raises UsageError for a URL or a file, MissingPart for a missing folder, StorageReadOnly and StorageFull.
    """
    folder = _folder(where)
    if not create and not folder.exists():
        raise MissingPart(
            "a folder of runs",
            got="nothing there",
            where=str(folder),
            remedy="Run `theodolite run` first, or name the folder with --runs.",
        )
    if create:
        _make(folder)
        if not os.access(folder, os.W_OK):
            raise read_only_error(str(folder))
    return LocalFolder(str(folder))


def _folder(where: str) -> Path:
    """The folder that `where` names, there or not; UsageError where it cannot be one."""
    if "://" in where:
        raise UsageError(
            "a folder for the runs",
            got=f"'{where}'",
            remedy="Object storage is not in this version: give a local folder.",
        )
    if not where.strip():
        raise UsageError("a folder", got=f"'{where}'", remedy="Name a folder; `.` is the current one.")
    folder = Path(where).expanduser().absolute()
    nearest = next(path for path in (folder, *folder.parents) if os.path.exists(path))  # noqa: PTH110 - never raises
    if not nearest.is_dir():
        raise UsageError("a folder", got="a file", where=str(nearest), remedy="Name another folder.")
    return folder


def _make(folder: Path) -> None:
    """Make a folder with those above it; StorageReadOnly, StorageFull, or StoreError for whatever else prevents it."""
    try:
        with translate_os_errors(str(folder)):
            folder.mkdir(parents=True, exist_ok=True)
    except TheodoliteError:
        raise
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise StoreError(
            "a folder that can be made", got=reason.lower(), where=str(folder), remedy="Name another folder."
        ) from error


def free_bytes_at(where: str) -> int:
    """Free bytes where a folder of runs is or would be made; makes nothing. Raises as `open_runs` does for a URL."""
    folder = _folder(where)
    while not os.path.exists(folder):  # noqa: PTH110 - never raises
        folder = folder.parent
    return shutil.disk_usage(folder).free


class LocalFolder:
    """A folder of this machine."""

    def __init__(self, where: str) -> None:
        self.where = where
        self._root = Path(where)

    def absolute(self, path: str) -> str:
        parts = PurePosixPath(path).parts
        if path.startswith("/") or ".." in parts:
            raise ValueError(f"expected a path inside the folder of runs, got '{path}'")
        return str(self._root.joinpath(*parts))

    def _at(self, path: str) -> Path:
        return Path(self.absolute(path))

    def read_bytes(self, path: str) -> bytes:
        with self.open_input(path) as file:
            return file.read()

    def write_bytes(self, path: str, data: bytes) -> None:
        target = self._at(path)
        unfinished = target.with_name(f".{target.name}.{os.getpid()}-{os.urandom(4).hex()}")
        with translate_os_errors(str(target)):
            target.parent.mkdir(parents=True, exist_ok=True)
            _sweep(target)
            try:
                with unfinished.open("xb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                unfinished.replace(target)
            except BaseException:
                unfinished.unlink(missing_ok=True)
                raise
            _sync_folder(target.parent)

    def exists(self, path: str) -> bool:
        return self._at(path).exists()

    def size(self, path: str) -> int:
        try:
            return self._at(path).stat().st_size
        except (FileNotFoundError, NotADirectoryError) as error:
            raise missing_error(self.absolute(path)) from error

    def list(self, prefix: str) -> Names:
        found: Names = []
        for folder, folders, files in os.walk(self._at(prefix)):
            folders[:] = [name for name in folders if not name.startswith(".")]
            here = Path(folder).relative_to(self._root)
            found += [(here / name).as_posix() for name in files if not name.startswith(".")]
        return sorted(found)

    def children(self, path: str) -> Names:
        folder = self._at(path)
        return sorted(p.name for p in folder.iterdir() if not p.name.startswith(".")) if folder.is_dir() else []

    def rename(self, source: str, target: str) -> None:
        old, new = self._at(source), self._at(target)
        with translate_os_errors(str(new)):
            if not old.exists():
                raise missing_error(str(old))
            new.parent.mkdir(parents=True, exist_ok=True)
            if old.is_dir() or new.is_dir():
                self.remove(target)
            old.replace(new)
            _sync_folder(new.parent)

    def remove(self, path: str) -> None:
        target = self._at(path)
        with translate_os_errors(str(target)):
            if target.is_dir() and not target.is_symlink():
                shutil.rmtree(target)
            else:
                target.unlink(missing_ok=True)

    def free_bytes(self) -> int:
        return shutil.disk_usage(self._root).free

    def open_output(self, path: str) -> BinaryIO:
        target = self._at(path)
        with translate_os_errors(str(target)):
            target.parent.mkdir(parents=True, exist_ok=True)
            return target.open("wb")

    def write_bulk(self, path: str, parts: Sequence[bytes]) -> None:
        target = self._at(path)
        with translate_os_errors(str(target)):
            target.parent.mkdir(parents=True, exist_ok=True)
            write_bulk(str(target), parts)

    def open_input(self, path: str) -> BinaryIO:
        try:
            return self._at(path).open("rb")
        except (FileNotFoundError, NotADirectoryError) as error:
            raise missing_error(self.absolute(path)) from error
        except IsADirectoryError as error:
            raise not_a_file_error(self.absolute(path)) from error

    def zarr_store(self, path: str, *, read_only: bool) -> Store:
        from zarr.storage import LocalStore

        return LocalStore(self.absolute(path), read_only=read_only)

    @contextmanager
    def lock(self, path: str, on_wait: Callable[[], None] | None = None) -> Iterator[None]:
        from filelock import FileLock, Timeout

        target = self._at(path)
        with translate_os_errors(str(target)):
            target.parent.mkdir(parents=True, exist_ok=True)
            lock = FileLock(target)
            try:
                lock.acquire(timeout=0)
            except Timeout:
                if on_wait is not None:
                    on_wait()
                lock.acquire(poll_interval=_LOCK_POLL_S)
        try:
            yield
        finally:
            lock.release()


def _sweep(target: Path) -> None:
    """Remove what a killed process left while it wrote this same file: its name carries the process's id."""
    if os.name != "posix":
        return
    for leftover in target.parent.glob(f".{target.name}.*-*"):
        process = leftover.name.removeprefix(f".{target.name}.").partition("-")[0]
        if process.isdigit() and not _alive(int(process)):
            leftover.unlink(missing_ok=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _sync_folder(folder: Path) -> None:
    """Put a rename itself on the disk; only POSIX systems can and need it."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
