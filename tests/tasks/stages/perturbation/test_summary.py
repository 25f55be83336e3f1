"""What a run tells of perturbed residual streams: from tables whose figures are known."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import duckdb
import pytest

from storage.filesystem import open_runs
from storage.warehouse import connect, query
from tasks.stages.perturbation.summary import perturbation_lines, propagation_lines, repair_lines
from tasks.stages.registry import tables
from tests.sql.conftest import no_sync, published, warehouse
from tests.sql.made_up_runs import MadeUp

__all__ = ["no_sync", "published", "warehouse"]


def test_arms_are_told_by_protocol(warehouse: duckdb.DuckDBPyConnection) -> None:
    """Of layers that are moved together, at absolute δ; each layer alone, and the rest, are for queries to tell."""
    exact, published = perturbation_lines(warehouse, "alpha")
    assert exact.startswith("Moved by δ (exact, layers all): δ 0.5 lengthened +") and "same in all layers" not in exact
    rows = query(warehouse, "dissociation", {"layers": "all"}).to_pylist()
    of = {(r["protocol"], r["first_token"], round(r["delta"], 3)): r for r in rows}
    row, alone = (of["published", first, 1.0] for first in ("include", "exclude"))
    assert published == (
        f"Moved by δ (published, layers all): δ 1 lengthened {row['nll_change_magnitude']:+.3f} and turned "
        f"{row['nll_change_angle']:+.3f} nats a token, {row['ratio']:.3g} times (95 % interval "
        f"{row['ratio_lo']:.3g} to {row['ratio_hi']:.3g}; published 42.9 of Pythia-410M); "
        f"the first token left alone, at δ 1 {alone['ratio']:.3g} times; "
        "angle's vector is the same in all layers, so that its steps add up."
    )


def test_no_more_than_four_lines_tell_of_many_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    base = {"first_token": "exclude", "delta_kind": "relative", "delta": 0.1, "flagged_share": 0.5, "protocol": "exact"}
    base |= {"nll_change_angle": 0.5, "nll_change_magnitude": -0.1, "ratio": None, "ratio_published": None}
    answer = [{**base, "layers": f"{n}-9"} for n in range(6)]
    rows = SimpleNamespace(to_pylist=lambda: answer)
    monkeypatch.setattr("tasks.stages.perturbation.summary.query", lambda *_: rows)
    connection: Any = None
    *lines, more = perturbation_lines(connection, "a")
    assert more == "3 more ways of moving are in the query dissociation." and len(lines) == 3
    assert lines[0] == (
        "Moved by δ as a share of the median norm (exact, layers 0-9, first token left alone): δ 0.1 lengthened -0.100 "
        "and turned +0.500 nats a token, no ratio, as lengthening does no damage, some of it on tokens too short to be "
        "moved."
    )


def test_recoveries_of_all_perturbed_layers_are_told(warehouse: duckdb.DuckDBPyConnection) -> None:
    """A relative δ does next to no damage there, so what goes of it is undefined, and said to be."""
    lines = list(repair_lines(warehouse, "alpha"))
    assert [line.partition(" goes")[0] for line in lines] == [
        "Of the damage of angle (δ 1 absolute, exact, layers all)",
        "Of the damage of magnitude (δ 1 absolute, exact, layers all)",
        "How much of the damage of angle (δ 0.1 relative, exact, layers all)",
        "How much of the damage of magnitude (δ 0.1 relative, exact, layers all)",
    ]
    assert "attention output " in lines[0] and lines[0].count("%") == 4
    assert all(line.endswith("nats a token, below 0.01.") and "%" not in line for line in lines[2:])


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
