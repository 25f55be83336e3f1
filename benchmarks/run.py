"""Every benchmark, one after the other: `make bench TEXT=wiki.txt`, a text of 50,000 characters or more.

PAIRS=FILE names a file of minimal pairs, without which that benchmark is left out.
"""

from __future__ import annotations

import os
import subprocess
import sys

SIZES = ("kernel",), ("kernel", "large")


def main() -> None:
    text = os.environ.get("TEXT")
    if not text:
        raise SystemExit("expected TEXT=FILE, a text of 50,000 characters or more: make bench TEXT=wiki.txt")
    runs = [("contributions", *s) for s in SIZES] + [
        ("stage", text),
        ("masking", text),
        ("masking", text, "--grid"),
        ("ablation", text),
        ("perturbation", text),
        ("selection", text),
        ("pod",),
        ("capture", text),
        ("storage", text),
        ("families",),
        ("commands",),
    ]
    if pairs := os.environ.get("PAIRS"):
        runs.append(("minimal_pairs", pairs))
    for module, *arguments in runs:
        print(f"\n## benchmarks.{module} {' '.join(arguments)}\n", flush=True)
        subprocess.run([sys.executable, "-m", f"benchmarks.{module}", *arguments], check=True)


if __name__ == "__main__":
    main()
