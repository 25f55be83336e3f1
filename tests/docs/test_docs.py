"""Documentation is a contract: its commands run, its code runs, its links lead somewhere, and nothing is left out."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from flows.cli import app
from storage.filesystem import open_runs
from storage.warehouse import connect, run_sql
from tasks.stages.registry import default_stages, stages, tables
from tests.conftest import ROOT
from tests.docs.blocks import PAGES, Block, blocks, commands, files, links
from tests.flows.command import environment, theodolite

README, RUNNING = ROOT / "README.md", ROOT / "docs" / "running.md"
NEEDS_WHEEL = "smollm2-135m"
"""Commands on the real model of `make smollm2`, which the tests do not install."""


pytestmark = pytest.mark.timeout(900)  # the commands of the README run one after the other


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the README's commands have run, in order, as a newcomer types them."""
    folder = tmp_path_factory.mktemp("newcomer")
    for line in commands("theodolite", README):
        if NEEDS_WHEEL in line:
            continue
        answer = theodolite(*shlex.split(line)[1:], home=folder / "prefect", cwd=folder)
        assert answer.code == 0, f"{line}\n{answer.out}\n{answer.err}"
    return folder


@pytest.mark.slow
def test_readme_leaves_a_run_with_rows_in_every_table_of_its_stages(workplace: Path) -> None:
    connection = connect(open_runs(str(workplace / "runs")), tables())
    done = run_sql(connection, "select distinct stage from stages where status = 'done'").column("stage").to_pylist()
    assert {*default_stages(), "masking", "sink", "selection"} <= set(done)
    expected = [table.name for name in done if name in stages() for table in stages()[name].tables]
    empty = [name for name in expected if not run_sql(connection, f"select 1 from {name} limit 1").num_rows]
    assert empty == []


@pytest.mark.slow
@pytest.mark.parametrize("block", blocks("sql"), ids=str)
def test_sql_of_the_docs_answers(workplace: Path, block: Block) -> None:
    connection = connect(open_runs(str(workplace / "runs")), tables())
    assert run_sql(connection, block.text).num_columns > 0


@pytest.mark.slow
@pytest.mark.parametrize("block", blocks("python"), ids=str)
def test_python_of_the_docs_runs(workplace: Path, block: Block) -> None:
    captures = [p.name for p in (workplace / "runs").iterdir() if p.is_dir()]
    text = block.text.replace("steps=500", "steps=2")
    if "violations(" in text:
        text = _BEFORE_VIOLATIONS.format(captures[0]) + text
    done = python("-c", text, home=workplace / "prefect", cwd=workplace)
    assert done.returncode == 0, done.stderr


def python(*arguments: str, home: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=cwd, env=environment(home), capture_output=True, text=True, check=False)


_BEFORE_VIOLATIONS = """
from storage.filesystem import open_runs
from storage.warehouse import connect
from tasks.stages.registry import default_stages, stages, tables
connection, capture = connect(open_runs("runs"), tables()), "{}"
"""


def test_make_targets_of_the_docs_exist() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {line.split()[1] for line in commands("make")}
    assert {"demo", "test"} <= named <= targets


@pytest.mark.parametrize("line", sorted(set(commands("prefect"))))
def test_prefect_commands_of_the_docs_exist(line: str, tmp_path: Path) -> None:
    words = [w for w in shlex.split(line)[1:] if not w.startswith("-")][:3]
    while True:
        done = python("-m", "prefect", *words, "--help", home=tmp_path, cwd=tmp_path)
        if done.returncode == 0 or len(words) == 1:
            break
        words.pop()
    assert done.returncode == 0, done.stderr
    options = [w for w in shlex.split(line) if w.startswith("--")]
    assert [o for o in options if o not in done.stdout] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    assert [link for link in links(page) if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.name}")
def test_files_that_are_named_exist(page: Path) -> None:
    assert [name for name in files(page) if not (ROOT / name).exists()] == []


def test_the_walks_are_as_short_as_promised_and_the_glossary_too() -> None:
    """docs/architecture.md: one tensor through at most 15 modules, one parameter through 10, at most 30 terms."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    for title, rows in (("walk of one attention tensor", 15), ("walk of one stage parameter", 10), ("Glossary", 30)):
        section = re.split(r"^## ", text.split(title, 1)[1], flags=re.MULTILINE)[0]
        assert 5 < len(re.findall(r"^\| (?!\||word)", section, re.MULTILINE)) <= rows, title


def test_every_command_and_option_is_documented() -> None:
    text = RUNNING.read_text()
    for name, command in typer.main.get_command(app).commands.items():
        assert f"theodolite {name}" in text, name
        for parameter in command.params:
            longest = max(parameter.opts, key=len)
            if longest.startswith("--") and longest != "--help":
                assert longest in text, f"{name} {longest}"


def test_every_stage_and_parameter_is_documented() -> None:
    text = "".join(page.read_text() for page in PAGES)
    for stage in stages().values():
        assert stage.name in text
        for name in stage.parameter_names():
            assert f"{stage.name}.{name}" in text, name


def test_commands_of_the_other_pages_are_known() -> None:
    known = typer.main.get_command(app).commands
    for line in commands("theodolite"):
        assert line.split()[1] in known, line
