"""How benchmarks measure: each case in a process of its own, cases alternated, the median of several rounds."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def resident(field: str) -> int:
    """Bytes of VmRSS (now) or VmHWM (the peak) of this process, from the kernel."""
    line = next(x for x in STATUS.read_text().splitlines() if x.startswith(field + ":"))
    return int(line.split()[1]) * 1024


@contextmanager
def measured(result: dict[str, float]) -> Iterator[None]:
    """Fill `result` with the block's wall and CPU seconds and its peak memory above what was there before."""
    CLEAR.write_text("5")
    before, cpu, start = resident("VmRSS"), time.process_time(), time.perf_counter()
    yield
    result["seconds"] = time.perf_counter() - start
    result["cpu_seconds"] = time.process_time() - cpu
    result["peak_mib"] = (resident("VmHWM") - before) / 2**20


def alternate(
    module: str,
    cases: Mapping[str, Sequence[str]],
    rounds: int,
    python: Callable[[str], str] = lambda _: sys.executable,
) -> dict[str, dict[str, float]]:
    """Run `python -m module case …` for every case, round after round; medians of each printed figure."""
    results: dict[str, list[dict[str, float]]] = {name: [] for name in cases}
    for number in range(rounds):
        for name, arguments in cases.items():
            command = [python(name), "-m", module, *arguments]
            run = subprocess.run(command, capture_output=True, text=True, check=False)
            if run.returncode:
                raise RuntimeError(f"{' '.join(command)} failed:\n{run.stderr[-2000:]}")
            results[name].append(json.loads(run.stdout.strip().splitlines()[-1]))
            print(f"round {number + 1} {name}: {results[name][-1]}", file=sys.stderr)
    return {n: {k: statistics.median(r[k] for r in runs) for k in runs[0]} for n, runs in results.items()}


def table(rows: Sequence[Mapping[str, object]]) -> str:
    """A Markdown table of these rows."""
    names = list(rows[0])
    lines = [f"| {' | '.join(names)} |", f"|{'|'.join(' --- ' for _ in names)}|"]
    lines += [f"| {' | '.join(str(row[n]) for n in names)} |" for row in rows]
    return "\n".join(lines)
