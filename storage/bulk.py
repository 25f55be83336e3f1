"""Bulk output past the page cache, where the system can: a capture writes more than memory holds, once.

Through the page cache every byte takes a page from whatever the machine could use it for, and the copy costs a core
that the model wants; straight to the disk it costs neither.
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
from collections.abc import Iterator, Sequence

import numpy as np

_ALIGNED = 4096
"""What memory, offset and length of a direct write must be multiples of, on every disk in use."""
_BUFFER = 4 << 20
_DIRECT = getattr(os, "O_DIRECT", 0)

_own = threading.local()


def write_bulk(path: str, parts: Sequence[bytes]) -> None:
    """Write a new file of these parts, one after the other.

    Where the file system refuses direct writes (some in memory, some over a network) they are buffered as usual.
    """
    file = _opened(path)
    try:
        buffer = _buffer()
        for filled in _fill(buffer, parts):
            whole = filled // _ALIGNED * _ALIGNED
            _write(file, buffer[:whole])
            if filled > whole:  # only the file's end is no multiple of a block
                _go_through_the_cache(file)
                _write(file, buffer[whole:filled])
    finally:
        os.close(file)


def _opened(path: str) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_CLOEXEC", 0)
    try:
        return os.open(path, flags | _DIRECT, 0o666)
    except OSError as error:
        if not _DIRECT or error.errno != errno.EINVAL:
            raise
        return os.open(path, flags, 0o666)


def _buffer() -> np.ndarray:
    """The thread's own page-aligned memory, of _BUFFER bytes."""
    if not hasattr(_own, "buffer"):
        _own.buffer = np.frombuffer(mmap.mmap(-1, _BUFFER), np.uint8)
    return _own.buffer


def _fill(buffer: np.ndarray, parts: Sequence[bytes]) -> Iterator[int]:
    """Copy the parts through the buffer: how much of it is filled, whenever it is full and at the end."""
    filled = 0
    for part in parts:
        source, at = np.frombuffer(part, np.uint8), 0
        while at < len(source):
            n = min(len(source) - at, len(buffer) - filled)
            buffer[filled : filled + n] = source[at : at + n]
            filled, at = filled + n, at + n
            if filled == len(buffer):
                yield filled
                filled = 0
    if filled:
        yield filled


def _write(file: int, data: np.ndarray) -> None:
    done = 0
    while done < len(data):
        try:
            done += os.write(file, data[done:].data)
        except OSError as error:
            if error.errno != errno.EINVAL or not _go_through_the_cache(file):
                raise
        if done % _ALIGNED:  # cut short by a disk that is nearly full: what is left lies askew
            _go_through_the_cache(file)


def _go_through_the_cache(file: int) -> bool:
    """Make the file's further writes buffered; False if they were."""
    if not _DIRECT:
        return False
    import fcntl

    flags = fcntl.fcntl(file, fcntl.F_GETFL)
    fcntl.fcntl(file, fcntl.F_SETFL, flags & ~_DIRECT)
    return bool(flags & _DIRECT)
