"""The command `theodolite` from its first moment: a signal ends it in the same way before and after it is loaded."""

from __future__ import annotations

import json
import os
import signal
import sys
from types import FrameType

from storage.errors import INCOMPLETE, INTERRUPTED


def _leave(_signal: int, _frame: FrameType | None) -> None:
    """End at once, with what a command prints and returns that is interrupted: nothing is under way yet."""
    os.write(2, f"theodolite: {INTERRUPTED}\n".encode())
    if "--json" in sys.argv:
        answer = {"error": {"kind": "Interrupted", "message": INTERRUPTED}, "exit": INCOMPLETE}
        os.write(1, f"{json.dumps(answer)}\n".encode())
    os._exit(INCOMPLETE)


def main() -> None:
    """Load the command line, which takes about a second, and call it."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, _leave)
    from flows.cli import main as command

    command()


if __name__ == "__main__":
    main()
