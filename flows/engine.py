"""Prefect for one command: quiet, off the network, and with an API of its own where none is configured.

Nothing here imports Prefect before its settings stand: it reads them once, when it is first imported.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from importlib import import_module
from pathlib import Path
from typing import Any

from storage.errors import AGAIN, TheodoliteError

_OFFLINE = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}
_QUIET = {
    # Failures are printed once, by the command; the whole log is in Prefect's database.
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
}
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_STOP_S = 6
_server: LocalServer | None = None


def cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def stage_workers(asked: int | None) -> int:
    """Shards of a stage worked on at once: as asked, never more than there are cores; the cores by default."""
    return min(asked or cores(), cores())


def use_all_cores() -> None:
    """Give what runs the model every core, whatever a stage before it took."""
    import torch

    torch.set_num_threads(cores())


def set_environment(*, verbose: bool) -> None:
    """Keep Prefect and transformers quiet and off the network; what the user set stays. Before either is imported.

    A proxy that the environment names is not used for addresses of this machine's own.
    """
    for name, value in (_OFFLINE if verbose else _OFFLINE | _QUIET).items():
        os.environ.setdefault(name, value)
    for name in ("NO_PROXY", "no_proxy"):  # a proxy cannot reach what listens on this machine's loopback
        os.environ[name] = ",".join(filter(None, [os.environ.get(name, ""), *_LOOPBACK]))


class LocalServer:
    """The child process of `flows.local_server`: started at once, waited for when it is needed."""

    address: str | None = None
    """Where it answers; None before `wait`, or where the user's settings name another API."""
    _waited = False

    def __init__(self) -> None:
        self._log = tempfile.TemporaryFile(mode="w+", encoding="utf-8")  # noqa: SIM115 - lives as long as the child
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).with_name("local_server.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,  # Ctrl-C is the command's to handle
        )
        atexit.register(self.stop)

    def wait(self) -> None:
        """Wait until it answers; TheodoliteError with its last words where it does not."""
        assert self._process.stdout is not None, "opened as a pipe"
        line, self._waited = self._process.stdout.readline(), True
        message = json.loads(line) if line else {"failed": "it ended while it started"}
        if "failed" in message:
            raise self._failure(message["failed"])
        self.address = message["api"]

    def _failure(self, reason: str) -> TheodoliteError:
        self._end()
        self._log.seek(0)
        said = self._log.read().strip().splitlines()
        return TheodoliteError(
            "a Prefect API for this run",
            got=f"none: {reason}",
            where=said[-1] if said else "",
            remedy="Set PREFECT_HOME to a folder that can be written, or PREFECT_API_URL to a running Prefect server.",
        )

    def unfit(self, error: Exception) -> TheodoliteError:
        """The error of an API that answers, but cannot keep what it is sent: its disk, most often."""
        temporary = os.environ.get("TMPDIR", tempfile.gettempdir())
        return TheodoliteError(
            "a Prefect API that can keep the record of this run",
            got=str(error).splitlines()[0],
            where=f"PREFECT_HOME {os.environ.get('PREFECT_HOME', '~/.prefect')}, TMPDIR {temporary}",
            remedy="Both need room to write, and no limit on the size of a file (`ulimit -f unlimited`). What was "
            f"published stays: {AGAIN}.",
        )

    def stop(self) -> None:
        """Let the child end. One that still starts is not waited for: nobody has used it, and it ends when it can."""
        if self._waited:
            self._end()
        assert self._process.stdin is not None, "opened as a pipe"
        self._process.stdin.close()
        self._log.close()

    def _end(self) -> None:
        """Wait for the child to end; what it still has to write is written within a moment."""
        assert self._process.stdin is not None, "opened as a pipe"
        assert self._process.stdout is not None, "opened as a pipe"
        self._process.stdin.close()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


def start() -> None:
    """Begin to start an API in the background, unless the environment names one; `orchestration` waits for it.

    It is registered to stop after Prefect's own exit handlers, which still send what they hold: so call this before
    Prefect is imported.
    """
    global _server  # noqa: PLW0603 - one per process, as Prefect's settings are
    if _server is None and not os.environ.get("PREFECT_API_URL"):
        _server = LocalServer()


def load_meanwhile(*modules: str) -> None:
    """Import what the flow will need of torch and transformers: it takes about as long as the API does to start."""
    for module in modules:
        import_module(module)


def connect() -> None:
    """Wait for the API that `start` began, and let Prefect, imported after this, know where it is."""
    if _server is not None and _server.address is None:
        _server.wait()
        if _server.address:
            os.environ["PREFECT_API_URL"] = _server.address


@contextmanager
def orchestration() -> Iterator[None]:
    """Run flows inside this block, after `connect`: Prefect answers there. TheodoliteError where a server does not."""
    from prefect.exceptions import PrefectHTTPStatusError
    from prefect.settings import temporary_settings

    changes: dict[Any, Any] = {}
    if _server is not None and _server.address:
        # Nobody watches this run's heartbeats, and their thread holds every flow's end back for a second.
        changes = {"api.url": _server.address, "flows.heartbeat_frequency": None}
    try:
        with temporary_settings(changes):
            yield
    except PrefectHTTPStatusError as error:
        if _server is None or _server.address is None or error.response.status_code < HTTPStatus.INTERNAL_SERVER_ERROR:
            raise
        raise _server.unfit(error) from error
    except RuntimeError as error:
        if not str(error).startswith("Failed to reach API"):
            raise
        raise TheodoliteError(
            "a Prefect server that answers",
            got=str(error),
            remedy="Start it (`prefect server start`), or unset PREFECT_API_URL to run without one.",
        ) from error
