"""The command line as a user calls it: in a process of its own with its own Prefect home, or in this one."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from flows.cli import main

ROOT = Path(__file__).resolve().parents[2]
THEODOLITE = (sys.executable, "-P", "-m", "flows")


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


def theodolite_here(*arguments: str, cwd: Path) -> Answer:
    """One call of `theodolite` in this process, for tests of what a command says and writes: it starts in no time.

    It starts no Prefect server: a command that runs a flow needs the one of the fixture `prefect_here`.
    """
    out, err = io.StringIO(), io.StringIO()
    with (
        chdir(cwd),
        patch.dict(os.environ, {"HF_HUB_OFFLINE": "1", "COLUMNS": "200"}),
        patch.object(sys, "argv", ["theodolite", *arguments]),
        patch("flows.engine.start"),
        patch("flows.cli.signal.signal"),  # this process is to end as pytest says
        patch("flows.cli.gc.freeze"),  # and lives on
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
        else:
            raise AssertionError("expected a command that ends with an exit code, got one that returned")
    return Answer(code, out.getvalue(), err.getvalue())
