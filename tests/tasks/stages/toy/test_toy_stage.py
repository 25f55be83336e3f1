"""A stage is added with one folder and its SQL files, and nothing else is touched: run, status, query and verify."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.flows.command import environment

HERE = Path(__file__).parent
PACKAGES = ("flows", "tasks", "storage", "sql", "samples", "presets")
COMMANDS = """
import json, sys
from pathlib import Path
from flows import engine
from tests.flows.command import theodolite_here

engine.set_environment(verbose=False)
engine.start()
for line in sys.stdin:
    answer = theodolite_here(*json.loads(line), cwd=Path())
    print(json.dumps([answer.code, answer.out, answer.err]), flush=True)
"""


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the code with the toy stage's folder, its view and its query added."""
    house = tmp_path_factory.mktemp("house")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, house / package, ignore=shutil.ignore_patterns("__pycache__"))
    folder = house / "tasks" / "stages" / "toy"
    folder.mkdir()
    (folder / "__init__.py").touch()
    for name in ("declaration", "steps"):
        shutil.copy(HERE / f"{name}.txt", folder / f"{name}.py")
    shutil.copy(HERE / "toy.sql", house / "sql" / "views")
    shutil.copy(HERE / "toy_longest.sql", house / "sql" / "queries")
    return house


@pytest.fixture(scope="module")
def call(house: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One process of that code calls every command: each would load torch and start Prefect for itself."""
    home, place = tmp_path_factory.mktemp("prefect"), tmp_path_factory.mktemp("place")
    env = environment(home) | {"PYTHONPATH": os.pathsep.join([os.fspath(house), os.fspath(ROOT)])}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-P", "-c", COMMANDS], env=env, cwd=place, **pipes) as process:

        def command(*arguments: str) -> tuple[int, dict[str, Any], str]:
            """The exit code, the JSON object, and what a person reads."""
            process.stdin.write(json.dumps([*arguments, "--json"]) + "\n")
            process.stdin.flush()
            code, out, told = json.loads(process.stdout.readline())
            assert out, told
            return code, json.loads(out.splitlines()[-1]), told

        yield command


def test_run_status_query_and_verify_know_the_stage(call: Any) -> None:
    options = ("--window", "32", "--max-documents", "2", "--stages", "toy", "--set", "toy.norms=l1,l2")
    code, answer, told = call("run", *options)
    assert code == 0, told
    assert answer["tables"]["toy"] == 2 * 6 * 8 * 2
    assert any(line.startswith("The longest value is ") for line in answer["found"])
    assert answer["next"][0] == "theodolite query toy_longest"

    code, answer, _ = call("status")
    assert code == 0
    assert [(row["stage"], row["status"]) for row in answer["status"]] == [("capture", "done"), ("toy", "done")]

    code, answer, _ = call("query", "toy_longest")
    assert code == 0
    assert len(answer["rows"]) == 6 * 8 * 2
    assert answer["rows"][0]["longest"] == max(row["longest"] for row in answer["rows"])

    code, answer, _ = call("verify", "--documents", "0")
    checks = {check["name"]: check for check in answer["verify"]["checks"]}
    assert code == 0
    assert checks["toy_complete"]["rows_checked"] == 2 and checks["unique_toy"]["passed"]
    assert checks["related_toy"]["passed"] and checks["accepted_values"]["passed"]


def test_its_words_are_refused_with_the_nearest(call: Any) -> None:
    code, answer, _ = call("stage", "toy", "--set", "toy.norms=l22")
    assert code == 2
    assert answer["error"]["message"] == "expected the name of a norm, got 'l22', in toy.norms. Did you mean 'l2'?"
