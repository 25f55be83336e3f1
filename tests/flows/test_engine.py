"""The Prefect API that a command starts beside itself: when it starts, when it does not, and that it ends."""

from __future__ import annotations

import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from flows import engine
from flows.engine import LocalServer
from storage.errors import TheodoliteError


@pytest.fixture(autouse=True)
def own_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PREFECT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PREFECT_HOME", str(home))
    monkeypatch.setenv("PREFECT_SERVER_ANALYTICS_ENABLED", "false")


@pytest.fixture
def servers() -> Iterator[list[LocalServer]]:
    started: list[LocalServer] = []
    yield started
    for server in started:
        server.stop()


def answers(server: LocalServer) -> bool:
    with urllib.request.urlopen(f"{server.address}/health", timeout=30) as answer:
        return answer.status == 200


@pytest.mark.slow
def test_two_at_once_on_one_home(servers: list[LocalServer]) -> None:
    """They start one after the other, since the first may make the database, and then run side by side."""
    servers += [LocalServer(), LocalServer()]
    for server in servers:
        server.wait()
    assert answers(servers[0])
    assert answers(servers[1])
    assert servers[0].address != servers[1].address
    servers[0].stop()
    with pytest.raises(OSError, match="refused"):
        answers(servers[0])
    assert answers(servers[1])


def test_none_where_a_profile_names_an_api(
    servers: list[LocalServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profiles = tmp_path / "profiles.toml"
    profiles.write_text('active = "theirs"\n[profiles.theirs]\nPREFECT_API_URL = "http://127.0.0.1:4299/api"\n')
    monkeypatch.setenv("PREFECT_PROFILES_PATH", str(profiles))
    servers.append(LocalServer())
    servers[0].wait()
    assert servers[0].address is None


def test_none_where_the_environment_names_an_api(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:4299/api")
    monkeypatch.setattr(engine, "_server", None)
    engine.start()
    assert engine._server is None


def test_refused_where_temporary_servers_are_off(servers: list[LocalServer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_SERVER_ALLOW_EPHEMERAL_MODE", "false")
    servers.append(LocalServer())
    with pytest.raises(TheodoliteError, match="PREFECT_SERVER_EPHEMERAL_ENABLED is off"):
        servers[0].wait()


def test_given_up_while_it_starts_ends_by_itself(servers: list[LocalServer]) -> None:
    server = LocalServer()
    server.stop()
    assert server._process.wait(30) == 0


def test_what_the_user_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_SERVER_ANALYTICS_ENABLED", "true")
    for name in ("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "TOKENIZERS_PARALLELISM"):
        monkeypatch.setenv(name, "x")  # so that it is restored after the test
        monkeypatch.delenv(name)
    engine.set_environment(verbose=True)
    assert os.environ["PREFECT_SERVER_ANALYTICS_ENABLED"] == "true"
    assert "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL" not in os.environ
    engine.set_environment(verbose=False)
    assert os.environ["PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL"] == "CRITICAL"


def test_a_proxy_of_the_environment_is_not_asked_for_the_own_server(
    servers: list[LocalServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "example.org")
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # nothing listens there
    servers.append(LocalServer())
    servers[0].wait()
    health = f"{servers[0].address}/health"
    with pytest.raises(httpx.ConnectError):
        httpx.get(health)
    engine.set_environment(verbose=True)
    assert httpx.get(health).status_code == 200
    assert os.environ["NO_PROXY"].startswith("example.org,")


def test_workers_never_exceed_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "cores", lambda: 4)
    assert [engine.stage_workers(n) for n in (None, 1, 4, 9)] == [4, 1, 4, 4]
