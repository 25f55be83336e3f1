"""A real Prefect server and worker on loopback, each with its own home, started and stopped from Python."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PREFECT = (sys.executable, "-m", "prefect")
_START_S = 120


def prefect_environment(home: Path, api: str) -> dict[str, str]:
    """The environment of every Prefect process of a test: nothing of the user's, nothing of the network's."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    return inherited | {
        "PREFECT_HOME": str(home),
        "PREFECT_API_URL": api,
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS": "2",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(ROOT),
    }


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def process(*arguments: str, environment: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A background process, its output in `log`, stopped at the end."""
    with log.open("wb") as output:
        started = subprocess.Popen(arguments, env=environment, cwd=log.parent, stdout=output, stderr=output)
        try:
            yield started
        finally:
            started.terminate()
            try:
                started.wait(20)
            except subprocess.TimeoutExpired:
                started.kill()
                started.wait()


@contextmanager
def server(folder: Path) -> Iterator[dict[str, str]]:
    """A Prefect server; yields the environment in which everything else finds it."""
    port = free_port()
    environment = prefect_environment(folder / "prefect", f"http://127.0.0.1:{port}/api")
    arguments = (*PREFECT, "server", "start", "--host", "127.0.0.1", "--port", str(port), "--no-ui")
    with process(*arguments, environment=environment, log=folder / "server.log") as started:
        _wait_until_it_answers(started, environment["PREFECT_API_URL"], folder / "server.log")
        yield environment


def _wait_until_it_answers(started: subprocess.Popen[bytes], api: str, log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        assert started.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(f"{api}/health", timeout=5) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.2)
    raise AssertionError(f"no answer in {_START_S} s: {log.read_text()}")


def prefect(*arguments: str, environment: dict[str, str], cwd: Path) -> str:
    """One call of the `prefect` command; its output."""
    done = subprocess.run(
        [*PREFECT, "--no-prompt", *arguments],
        env=environment,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
