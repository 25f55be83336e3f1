"""Changes that a process makes to a folder, counted, so that a test can stop it before any one of them."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Any

WAITING = "waiting"
"""What a stopped process prints."""

_EVENTS = ("os.rename", "os.mkdir", "os.remove", "os.rmdir")


class Changes:
    """Counts the changes under a folder: files opened, writes, syncs, folders made, moves, removals.

    Before the change of the number `stop` (from 1), or the first of a path with the text `stop` in it, the process
    prints `waiting` and calls `wait`; 0 only counts.
    """

    def __init__(self, folder: str, stop: int | str, wait: Callable[[], Any] = sys.stdin.read) -> None:
        self.made, self._stop, self._wait = 0, stop, wait
        self._folder, self._counting, self._write = folder, threading.Lock(), os.write

    def watch(self) -> None:
        """Count from now on, to the end of the process."""
        sys.addaudithook(self._heard)
        sync = os.fsync
        os.write = lambda file, data: (self.count() if file > 2 else None, self._write(file, data))[1]
        os.fsync = lambda file: (self.count(), sync(file))[1]

    def count(self, path: str = "") -> None:
        """One more change is about to be made, at `path` where it is known."""
        with self._counting:
            self.made += 1
            if self._stop == self.made or (isinstance(self._stop, str) and self._stop in path):
                self._stop = 0
                self._write(1, f"{WAITING}\n".encode())
                self._wait()

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        opened = event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if (opened or event in _EVENTS) and str(arguments[0]).startswith(self._folder):
            self.count(str(arguments[0]))
