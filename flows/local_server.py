"""The Prefect API of one command: a child process that ends with it, whatever ends it.

Prefect's own temporary server outlives a parent that was killed. This one reads its standard input and stops at its
end, which comes when the parent is gone. It tells the parent one line of JSON on standard output:

    {"api": "http://…"}         where it answers from now on
    {"api": null}               the user's settings name an API: none is started
    {"failed": "…"}             why there is none

Started as a file, not as a module, by `flows.engine`; so it imports nothing of this project.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import uvicorn

_GRACE_S = 4
_POLL_S = 0.02


def _tell(**message: Any) -> None:
    with suppress(BrokenPipeError):  # the parent has gone meanwhile
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


class _EndWithParent(threading.Thread):
    """Ends this process at the end of its standard input: at once, or in order once it has begun to serve.

    A start may be making Prefect's database, and that is never cut short.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._server: uvicorn.Server | None = None
        self._turn = threading.Lock()

    def begin(self, server: uvicorn.Server) -> None:
        """From here on the server is asked to stop."""
        with self._turn:
            self._server = server

    def run(self) -> None:
        sys.stdin.read()
        with self._turn:
            if self._server is None:
                os._exit(0)
        self._server.should_exit = True
        while not self._server.started:
            threading.Event().wait(_POLL_S)
        threading.Event().wait(_GRACE_S + 1)
        os._exit(1)


def _serve(parent: _EndWithParent) -> None:
    import uvicorn
    from filelock import FileLock
    from prefect.server.api.server import create_app
    from prefect.settings import get_current_settings

    home = get_current_settings().home
    home.mkdir(parents=True, exist_ok=True)
    listener = socket.create_server(("127.0.0.1", 0))
    app = create_app(ephemeral=True, final=True)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="on", timeout_graceful_shutdown=_GRACE_S))
    starting = FileLock(home / "theodolite-start.lock", thread_local=False)
    starting.acquire()  # two first starts at once would migrate one database twice

    def announce() -> None:
        while not server.started:
            if server.should_exit:
                return
            threading.Event().wait(_POLL_S)
        starting.release()
        _tell(api=f"http://127.0.0.1:{listener.getsockname()[1]}/api")

    threading.Thread(target=announce, daemon=True).start()
    parent.begin(server)
    server.run(sockets=[listener])
    if not server.started:
        _tell(failed="its start-up failed")
    os._exit(0)  # all is written by now; taking the interpreter down in order would cost two seconds more


def main() -> None:
    """Serve, unless an API is configured or temporary ones are switched off."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = _EndWithParent()
    parent.start()
    from prefect.settings import get_current_settings

    settings = get_current_settings()
    if settings.api.url:
        _tell(api=None)
    elif not settings.server.ephemeral.enabled:
        _tell(failed="PREFECT_SERVER_EPHEMERAL_ENABLED is off and no PREFECT_API_URL is set")
    else:
        _serve(parent)


if __name__ == "__main__":
    main()
