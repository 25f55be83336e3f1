"""Why an answer has no rows, and what to ask after a run: by the stages that fill the tables of a question."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

import sql
from flows.empty_answers import no_rows_lines, stages_asked, tables_read
from flows.summary import next_commands
from storage.filesystem import open_runs
from storage.warehouse import connect, query
from tasks.stages.registry import stages, tables
from tests.sql.made_up_runs import MadeUp

PROBES = sql.read("queries", "probe_scores").text


def test_tables_of_a_statement() -> None:
    text = 'with n as (select 1 from Tokens) select * from n join "probes_history" as p on true join tokens using (doc)'
    assert tables_read(text) == ["tokens", "probes"]


def test_every_named_query_reads_a_table() -> None:
    assert [name for name in sql.names("queries") if not tables_read(sql.read("queries", name).text)] == []
    assert stages_asked("class_by_contribution") == {"contributions", "taxonomy", "head_ablation"}
    assert stages_asked("capture_cost") == set()


def test_the_stage_that_would_fill_an_empty_table_is_named(tmp_path: Path) -> None:
    runs = open_runs(str(tmp_path), create=True)
    MadeUp(runs, "alpha").capture()
    with connect(runs, tables()) as connection:
        assert query(connection, "probe_scores").num_rows == 0
        assert no_rows_lines(connection, PROBES, "runs", {}) == [
            "No rows: probes is empty, filled by the stage probes: theodolite stage probes"
        ]
        told = no_rows_lines(connection, PROBES, "my runs", {"capture": "alpha"})
    assert told[0].endswith("theodolite stage probes --capture alpha --runs 'my runs'")


def test_filled_tables_are_not_blamed(warehouse: duckdb.DuckDBPyConnection) -> None:
    text = sql.read("queries", "convexity").text
    assert query(warehouse, "convexity", {"layer": 77}).num_rows == 0
    assert no_rows_lines(warehouse, text, "runs", {}) == [
        "No rows: the tables are filled, but no row meets the conditions."
    ]
    assert no_rows_lines(warehouse, text, "runs", {"layer": 77}) == ["No rows: sink_fit has no layer 77; it has 0, 1."]


def test_where_nothing_is_captured_the_command_says_it(tmp_path: Path) -> None:
    with connect(open_runs(str(tmp_path), create=True), tables()) as connection:
        assert no_rows_lines(connection, PROBES, "runs", {}) == []


@pytest.mark.parametrize("stage", sorted(stages()))
def test_only_what_is_done_is_asked_next(stage: str) -> None:
    """A query is about its stage, and is proposed where that is done and nowhere else."""
    query = stages()[stage].query
    if query:
        assert stage in stages_asked(query)
        assert f"theodolite query {query}" in next_commands({"capture", stage}, "alpha")
    for command in next_commands({*stages()} - {stage}, "alpha"):
        assert command != f"theodolite query {query}"
        assert "contribution_edges" not in command or stage != "contributions"


def test_three_commands_follow_a_run() -> None:
    first, second, third = next_commands({"capture", "contributions", "taxonomy"}, "alpha")
    assert first == "theodolite query sink_suppression" and "contribution_edges" in second
    assert third.startswith("theodolite stage masking")
    assert next_commands({"capture"}, "alpha") == ["theodolite query capture_cost"]
    assert next_commands(set(stages()), "alpha")[2] == "theodolite query score_hierarchy"
