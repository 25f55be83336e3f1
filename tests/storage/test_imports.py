"""A command that runs no flow answers at once: what it imports of storage brings in nothing heavy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIGHT = ["errors", "layout", "keys", "filesystem", "manifest", "tables"]
HEAVY = {"torch", "transformers", "prefect", "zarr", "numcodecs", "scipy", "pandas", "numba", "sklearn"}


def test_light_modules_import_nothing_heavy() -> None:
    program = f"import sys; {'; '.join(f'import storage.{name}' for name in LIGHT)}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert HEAVY & set(done.stdout.split()) == set()


def test_declarations_of_stages_and_tables_import_nothing_heavy() -> None:
    """Queries, plans and the status read the registry."""
    program = "import sys; from tasks.stages.registry import tables; tables(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert HEAVY & set(done.stdout.split()) == set()


@pytest.mark.parametrize(
    ("folder", "forbidden"),
    [
        ("storage", {"tasks", "flows", "prefect"}),
        ("tasks", {"flows"}),
        ("tasks/kernels", {"flows", "storage", "prefect", "zarr", "duckdb", "pyarrow", "transformers"}),
    ],
)
def test_dependencies_run_one_way(folder: str, forbidden: set[str]) -> None:
    """flows → tasks → storage; kernels know no file and no engine."""
    for path in (ROOT / folder).rglob("*.py"):
        lines = [line for line in path.read_text().splitlines() if line.strip().startswith(("from ", "import "))]
        assert not [line for line in lines if line.split()[1].split(".")[0] in forbidden], path
