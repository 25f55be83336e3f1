"""What a run tells of perturbed residual streams: from tables whose figures are known."""

from __future__ import annotations

import duckdb

from flows.perturbation_findings import perturbation_lines, propagation_lines, repair_lines
from storage.filesystem import open_runs
from storage.warehouse import connect, query
from tasks.registry import tables
from tests.sql.conftest import no_sync, published, warehouse
from tests.sql.made_up_runs import MadeUp

__all__ = ["no_sync", "published", "warehouse"]


def test_arms_are_told_by_protocol_and_first_token(warehouse: duckdb.DuckDBPyConnection) -> None:
    """Of layers that are moved together; each layer alone is for queries to tell."""
    lines = list(perturbation_lines(warehouse, "alpha"))
    assert len(lines) == 8 and all("layers all" in line for line in lines)
    first = query(warehouse, "dissociation", {"layers": "all", "first_token": "include"}).to_pylist()[0]
    (line,) = [x for x in lines if "δ (exact, layers all, first token moved too)" in x]
    assert f"δ 0.5 {first['nll_change_angle']:+.3f} (" in line and "too short to be moved" in line
    assert line.endswith("nats a token.")
    assert sum("as a share of the median norm (published" in x for x in lines) == 2


def test_recoveries_of_all_perturbed_layers_are_told(warehouse: duckdb.DuckDBPyConnection) -> None:
    """A relative δ does next to no damage there, so nothing of it goes."""
    lines = list(repair_lines(warehouse, "alpha"))
    assert [line.partition(" goes")[0] for line in lines] == [
        "Of the damage of angle (δ 1 absolute, exact, layers all)",
        "Of the damage of magnitude (δ 1 absolute, exact, layers all)",
    ]
    assert "attention output " in lines[0] and lines[0].count("%") == 4


def test_distances_after_the_last_layer_are_told(warehouse: duckdb.DuckDBPyConnection) -> None:
    lines = list(propagation_lines(warehouse, "alpha"))
    assert len(lines) == 2 * 3 * 2 and not any("layers 1)" in line for line in lines)
    assert all("after the last layer" in line for line in lines)


def test_nothing_is_told_of_what_was_not_run(tmp_path: object) -> None:
    fs = open_runs(str(tmp_path), create=True)
    MadeUp(fs, "alpha").capture()
    connection = connect(fs, tables())
    for lines in (perturbation_lines, repair_lines, propagation_lines):
        assert list(lines(connection, "alpha")) == []
