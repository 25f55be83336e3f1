"""Documentation as a contract: every table, column, query and check is in it, and every recipe in it runs."""

from __future__ import annotations

import re
from pathlib import Path

import duckdb
import pytest

import sql
from storage.checks import list_checks
from storage.tables import TableSpec
from storage.warehouse import run_sql
from tasks.stages.registry import declared_checks, tables
from tests.sql.test_views import SQL_TYPES

DOCS = Path(__file__).resolve().parents[2] / "docs"
TABLES, ASKING = ((DOCS / name).read_text("utf-8") for name in ("tables.md", "sql.md"))
RECIPES = re.findall(r"```sql\n(.+?)```", ASKING, re.DOTALL)


def section(text: str, title: str) -> str:
    """What stands under a heading, up to the next one."""
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"no section {title}"
    return found[1]


@pytest.mark.parametrize("spec", tables().values(), ids=lambda spec: spec.name)
def test_each_table_is_described_as_its_view_says(spec: TableSpec) -> None:
    text, view = section(TABLES, spec.name), sql.read("views", spec.name)
    assert text.startswith(f"{view.summary} Grain: {view.grain};")
    rows = [
        tuple(cell.strip() for cell in line.strip("|").split("|")) for line in text.splitlines() if line.startswith("|")
    ]
    meanings = view.column_meanings()
    expected = [(f.name, SQL_TYPES[f.type].lower(), meanings[f.name].replace("|", "&#124;")) for f in spec.schema]
    assert rows[2:] == expected


def test_no_table_is_described_that_there_is_not() -> None:
    assert set(re.findall(r"^## (\w+)$", TABLES, re.MULTILINE)) == set(tables())


@pytest.mark.parametrize("name", sql.names("queries"))
def test_each_query_is_described_with_its_parameters(name: str) -> None:
    text = section(ASKING, name)
    described = re.findall(r"^\| (\w+) \| ([\w.]+) \| (.+) \|$", text, re.MULTILINE)
    declared = [(p.name, str(p.default).lower().replace("none", "null")) for p in sql.read("queries", name).parameters]
    assert [row[:2] for row in described] == declared
    for parameter, row in zip(sql.read("queries", name).parameters, described, strict=True):
        assert row[2].split(".")[0].replace("`", "").lower().startswith(parameter.meaning.split(", with")[0].lower())


def test_each_check_is_described() -> None:
    described = set(re.findall(r"^\| (\w+) \| .+ \|$", section(ASKING, "Checks"), re.MULTILINE)) - {"check"}
    assert described == {
        re.sub(r"^(unique|related)_.*", r"\1_TABLE", check.name) for check in list_checks(declared_checks())
    }


@pytest.mark.parametrize("recipe", RECIPES, ids=range(len(RECIPES)))
def test_each_recipe_runs(warehouse: duckdb.DuckDBPyConnection, recipe: str) -> None:
    assert run_sql(warehouse, recipe).num_columns > 1


def test_the_commands_run(warehouse: duckdb.DuckDBPyConnection) -> None:
    means, fits = re.findall(r'theodolite sql "(.+?)"', ASKING)
    assert run_sql(warehouse, means).num_rows == 2
    assert run_sql(warehouse, fits).num_columns > 2


def test_python_in_the_docs_uses_names_that_there_are() -> None:
    for block in re.findall(r"```python\n(.+?)```", ASKING, re.DOTALL):
        imports = [line for line in block.splitlines() if line.startswith("from ")]
        exec("\n".join(imports), {})
