"""The shipped prefect.yaml, for real: a server, a worker, a schedule that fires, and the tables found by SQL."""

from __future__ import annotations

import json
import time
import urllib.request
from pathlib import Path
from typing import Any

import duckdb
import pytest
import yaml

from tests.flows.prefect_server import PREFECT, ROOT, prefect, process, server

_DEADLINE_S = 240


def _shipped() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "prefect.yaml").read_text(encoding="utf-8"))


def test_deployments_name_modules_and_pools() -> None:
    """The file form of an entrypoint would put flows/ first on the path; capture belongs on the GPU's pool."""
    deployments = {d["name"]: d for d in _shipped()["deployments"]}
    pools = {name: d["work_pool"]["name"] for name, d in deployments.items()}
    assert pools == {"capture": "gpu", "stage": "cpu", "full-run": "cpu"}
    assert all(":" not in d["entrypoint"] and d["entrypoint"].startswith("flows.") for d in deployments.values())
    assert deployments["full-run"]["schedules"][0]["active"]
    assert deployments["capture"]["concurrency_limit"] == 1


def _soon(runs: Path) -> dict[str, Any]:
    """The shipped file with a schedule that fires at once, over few documents, into a folder of the test."""
    content = _shipped()
    for deployment in content["deployments"]:
        deployment["parameters"]["runs"] = str(runs)
        if "capture" in deployment["parameters"]:
            deployment["parameters"]["capture"] |= {"max_documents": 2}
    content["deployments"][2]["schedules"] = [{"interval": 20, "active": True}]
    return content


def _flow_runs(api: str) -> list[dict[str, Any]]:
    body = json.dumps({"sort": "EXPECTED_START_TIME_ASC"}).encode()
    request = urllib.request.Request(
        f"{api}/flow_runs/filter", data=body, headers={"Content-Type": "application/json"}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read())


def _wait_for_scheduled_run(api: str, log: Path) -> dict[str, Any]:
    """The first scheduled run that has ended."""
    deadline = time.monotonic() + _DEADLINE_S
    while time.monotonic() < deadline:
        ended = [
            r for r in _flow_runs(api) if r["auto_scheduled"] and r["state_type"] in ("COMPLETED", "FAILED", "CRASHED")
        ]
        if ended:
            return ended[0]
        time.sleep(1)
    raise AssertionError(f"no scheduled run ended in {_DEADLINE_S} s\n{log.read_text()}")


@pytest.mark.server
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_schedule_fires_and_fills_tables(tmp_path: Path) -> None:
    runs, file = tmp_path / "runs", tmp_path / "prefect.yaml"
    file.write_text(yaml.safe_dump(_soon(runs)), encoding="utf-8")
    with server(tmp_path) as environment:
        for pool in ("gpu", "cpu"):
            prefect("work-pool", "create", pool, "--type", "process", environment=environment, cwd=tmp_path)
        told = prefect("deploy", "--all", "--prefect-file", str(file), environment=environment, cwd=tmp_path)
        assert all(name in told for name in ("capture/capture", "stage/stage", "full-run/full-run"))
        worker, log = (*PREFECT, "worker", "start", "--pool", "cpu", "--limit", "1"), tmp_path / "worker.log"
        with process(*worker, environment=environment, log=log):
            run = _wait_for_scheduled_run(environment["PREFECT_API_URL"], log)
    assert run["state_type"] == "COMPLETED", (run["state"], log.read_text())
    with duckdb.connect(str(runs / "warehouse.duckdb"), read_only=True) as warehouse:
        assert warehouse.execute("select count(*) from documents").fetchall() == [(2,)]
        rows = warehouse.execute(
            "select count(*), min(sum_cw_intra), max(sum_cw_intra) from contribution_rows"
        ).fetchall()
    assert rows[0][0] > 0
    assert rows[0][1] == pytest.approx(1, abs=1e-5)
    assert rows[0][2] == pytest.approx(1, abs=1e-5)
