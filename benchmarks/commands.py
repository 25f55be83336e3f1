"""How long a command takes that runs no flow, and `theodolite run` on the embedded default, new and again.

`python -m benchmarks.commands` prints wall seconds, medians of several calls, each a process of its own.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import table

ROOT = Path(__file__).resolve().parent.parent
ANSWERS: dict[str, Sequence[str]] = {
    "theodolite --help": ("--help",),
    "theodolite plan": ("plan",),
    "theodolite status": ("status",),
    "theodolite models": ("models",),
    "theodolite sql": ("sql", "select layer, avg(sink_rate) from sink_geometry group by layer"),
    "theodolite query factor_shares": ("query", "factor_shares"),
}


def call(folder: Path, *arguments: str) -> float:
    """Wall seconds of one call, in a folder and with a Prefect home of its own."""
    environment = {**os.environ, "PREFECT_HOME": str(folder / "prefect"), "PYTHONPATH": str(ROOT)}
    start = time.perf_counter()
    command = [sys.executable, "-P", "-m", "flows", *arguments]
    subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=True)
    return time.perf_counter() - start


def main(rounds: int = 5) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = [
            {"command": "theodolite run, the first on a machine", "seconds": f"{call(folder, 'run'):.1f}"},
            {"command": "theodolite run again, nothing left to do", "seconds": f"{call(folder, 'run'):.1f}"},
            {"command": "theodolite run --seed 1, stage anew", "seconds": f"{call(folder, 'run', '--seed', '1'):.1f}"},
        ]
        for command, arguments in ANSWERS.items():
            seconds = statistics.median(call(folder, *arguments) for _ in range(rounds))
            rows.append({"command": command, "seconds": f"{seconds:.2f}"})
    print(table(rows))


if __name__ == "__main__":
    main()
