"""The command line as a user calls it: a process of its own, with its own Prefect home."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
THEODOLITE = (sys.executable, "-P", "-m", "flows.cli")


def environment(home: Path) -> dict[str, str]:
    """Nothing of the user's Prefect, nothing of the network; one thread, since tests run side by side."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    return inherited | {
        "PREFECT_HOME": str(home),
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), inherited.get("PYTHONPATH")))),
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "200",
    }


@dataclass(frozen=True)
class Answer:
    """What a command said and how it ended."""

    code: int
    out: str
    err: str

    @property
    def content(self) -> dict[str, Any]:
        """The JSON object: the last line of standard output."""
        return json.loads(self.out.splitlines()[-1])


def theodolite(*arguments: str, home: Path, cwd: Path, timeout: float = 240) -> Answer:
    """One call of `theodolite`."""
    done = subprocess.run(
        [*THEODOLITE, *arguments],
        env=environment(home),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    return Answer(done.returncode, done.stdout, done.stderr)
