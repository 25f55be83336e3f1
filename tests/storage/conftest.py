"""Folders of runs to write into: a plain one, and a small disk of its own where that can be mounted."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from storage.filesystem import Filesystem, open_runs

# A busy machine is no failure: no deadline for an example, none for drawing one.
settings.register_profile(
    "storage", deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
settings.load_profile("storage")


@pytest.fixture
def fs(tmp_path: Path) -> Filesystem:
    return open_runs(str(tmp_path / "runs"), create=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Filesystem]]:
    """Mounts a disk with the given options (`size=64k`), or mounts it anew with others, and gives its runs."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = False

    def mount(options: str) -> Filesystem:
        nonlocal mounted
        extra = ["-o", f"remount,{options}"] if mounted else ["-o", options]
        done = subprocess.run(["mount", "-t", "tmpfs", *extra, "tmpfs", str(folder)], capture_output=True, check=False)
        if done.returncode:
            pytest.skip(f"a small disk cannot be mounted here: {done.stderr.decode().strip()}")
        mounted = True
        return open_runs(str(folder))

    if os.name != "posix" or os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    yield mount
    if mounted:
        subprocess.run(["umount", str(folder)], check=True)
