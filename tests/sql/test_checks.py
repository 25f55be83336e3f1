"""The checks hold on consistent data, and each of them fails on data that break what it checks."""

from __future__ import annotations

from collections.abc import Callable

import duckdb
import numpy as np
import pytest

from storage.checks import list_checks, violations
from storage.errors import UnknownName
from storage.filesystem import LocalFolder
from storage.warehouse import CheckResult, connect, run_checks
from tasks.stages.registry import declared_checks, tables
from tests.sql.breaks import BREAKS, Break, add
from tests.sql.made_up import Columns
from tests.sql.made_up_runs import MadeUp
from tests.sql.wrong_words import put_words, wrong_words

Broken = Callable[..., duckdb.DuckDBPyConnection]
ALL = {check.name: check for check in list_checks(declared_checks())}


WITHOUT_A_BREAK = {
    "related_minimal_pairs": "as related_choices",
    "related_choices": "its rows name no document, layer or head, and their capture is that of the part they are in",
    "unique_stages": "its rows are files named by capture, stage and key: two rows of one key cannot be written",
    "related_documents": "a capture's row and its documents are one part",
    "related_heads": "a capture's row and its heads are one part",
}


def by_name(results: list[CheckResult]) -> dict[str, CheckResult]:
    return {result.name: result for result in results}


def test_every_check_is_broken_by_some_test() -> None:
    assert {name for name, _, _ in BREAKS} | {"accepted_values"} | set(WITHOUT_A_BREAK) == set(ALL)


def test_all_hold_on_consistent_data_and_see_rows(warehouse: duckdb.DuckDBPyConnection) -> None:
    results = run_checks(warehouse, declared_checks())
    assert [r.name for r in results] == list(ALL)
    for result in results:
        assert result.passed, result
        assert (result.capture, result.failures) == ("alpha", 0)
        assert result.rows_checked > 0
        assert result.worst is not None
        assert result.message.startswith("holds: worst error")
    assert by_name(results)["contribution_rows_sum_intra"].rows_checked == 192


@pytest.mark.parametrize(
    ("check", "table", "change"), BREAKS, ids=[f"{c}-{t}-{getattr(b, '__name__', '')}" for c, t, b in BREAKS]
)
def test_each_fails_on_data_that_break_it(broken: Broken, check: str, table: str, change: Break) -> None:
    (result,) = run_checks(broken(**{table: change}), declared_checks(), only=[check])
    assert not result.passed
    assert result.failures > 0
    assert result.message.startswith(ALL[check].summary)
    assert f"Broken in {result.failures:,} of {result.rows_checked:,}" in result.message


def test_every_column_of_choices_refuses_words_that_are_none(broken: Broken) -> None:
    """Of `stages` the rows come from the runs' records, which no table's data change."""
    chosen = [table for table in tables() if table != "stages" and wrong_words(table)]
    connection = broken(**{table: put_words(table) for table in chosen})
    (result,) = run_checks(connection, declared_checks(), only=["accepted_values"])
    assert result.message.startswith(ALL["accepted_values"].summary)
    found = violations(connection, declared_checks(), "accepted_values", "alpha", limit=1000)
    expected = {(f"{t}.{name}", word) for t in chosen for name, words in wrong_words(t).items() for word in words}
    assert {(row["column_name"], row["value"]) for row in found} == expected
    assert result.failures == len(found) == len(expected) > 60


def test_a_failure_names_the_worst_row(broken: Broken) -> None:
    connection = broken(contribution_rows=add("sum_cw_intra", 9, 0.25))
    (result,) = run_checks(connection, declared_checks(), only=["contribution_rows_sum_intra"])
    assert (result.failures, result.rows_checked) == (1, 192)
    assert result.worst == pytest.approx(0.25, abs=1e-6)
    assert result.message == (
        "Σ_j cw_intra = 1 on every query row whose head writes something. "
        "Broken in 1 of 192; worst at doc 0, layer 0, head 1, query 3: error 0.25 where 1e-05 is allowed."
    )
    (row,) = violations(connection, declared_checks(), "contribution_rows_sum_intra", "alpha", limit=5)
    assert (row["doc"], row["layer"], row["head"], row["query"]) == (0, 0, 1, 3)


@pytest.mark.parametrize(
    ("store_dtype", "error", "holds"),
    [
        ("float32", 5e-6, True),
        ("float32", 5e-4, False),
        ("float16", 5e-4, True),
        ("float16", 5e-3, False),
        ("bfloat16", 5e-4, True),
        ("bfloat16", 5e-3, False),
    ],
)
def test_the_tolerance_is_that_of_the_stored_dtype(broken: Broken, store_dtype: str, error: float, holds: bool) -> None:
    connection = broken(store_dtype, contribution_rows=add("sum_cw_intra", 3, error))
    (result,) = run_checks(connection, declared_checks(), only=["contribution_rows_sum_intra"])
    assert result.passed == holds


def test_a_row_whose_output_is_zero_is_undefined_and_passes(broken: Broken) -> None:
    def change(columns: Columns) -> None:
        for name in ("sum_cw_intra", "negative_share"):
            columns[name][3] = np.nan
        columns["output_norm"][3] = 0

    results = by_name(run_checks(broken(contribution_rows=change), declared_checks()))
    assert all(result.passed for result in results.values())
    assert results["contribution_rows_sum_intra"].rows_checked == 191


def test_a_value_of_length_zero_has_no_cosine_and_passes(broken: Broken) -> None:
    def change(columns: Columns) -> None:
        columns["relative_norm"][5], columns["cosine"][5], columns["cw_intra"][5] = 0, np.nan, 0

    results = run_checks(broken(contribution_edges=change), declared_checks(), only=["contribution_edges_factors"])
    assert results[0].passed


def test_a_tail_equal_to_the_sink_has_no_minimum_and_passes(broken: Broken) -> None:
    def change(columns: Columns) -> None:
        columns["tail_norm"][5] = columns["sink_norm"][5]
        columns["cosine_sink_tail"][5], columns["a_star"][5], columns["min_norm"][5] = 1, np.nan, np.nan
        columns["interior"][5] = False

    for result in run_checks(
        broken(sink_geometry=change), declared_checks(), only=["sink_geometry_formula", "sink_geometry_minimum"]
    ):
        assert result.passed, result


def test_a_query_that_reads_the_sink_alone_has_no_tail_and_passes(broken: Broken) -> None:
    def change(columns: Columns) -> None:
        for name in ("tail_norm", "cosine_sink_tail", "a_star", "min_norm"):
            columns[name][5] = np.nan
        columns["interior"][5] = False

    assert run_checks(broken(sink_geometry=change), declared_checks(), only=["sink_geometry_formula"])[0].passed


def test_captures_are_checked_apart(runs: LocalFolder) -> None:
    MadeUp(runs, "beta", changes={"contribution_rows": add("sum_cw_intra", 3, 1)}).publish()
    connection = connect(runs, tables())
    only = ["contribution_rows_sum_intra"]
    assert {r.capture: r.passed for r in run_checks(connection, declared_checks(), only=only)} == {
        "alpha": True,
        "beta": False,
    }
    assert [r.capture for r in run_checks(connection, declared_checks(), ["alpha"], only=only)] == ["alpha"]


def test_a_capture_without_the_stage_has_nothing_to_check(runs: LocalFolder) -> None:
    MadeUp(runs, "beta").capture()
    (result,) = run_checks(connect(runs, tables()), declared_checks(), ["beta"], only=["contribution_rows_sum_intra"])
    assert result == CheckResult("contribution_rows_sum_intra", "beta", True, 0, 0, None, "nothing to check")


def test_stale_rows_are_not_checked(runs: LocalFolder) -> None:
    alpha = MadeUp(runs, "alpha", changes={"contribution_rows": add("sum_cw_intra", 3, 1)})
    alpha.contributions(variant=1, requested=5)
    only = ["contribution_rows_sum_intra"]
    assert not run_checks(connect(runs, tables()), declared_checks(), only=only)[0].passed
    alpha.run("contributions", 0, requested=9)
    assert run_checks(connect(runs, tables()), declared_checks(), only=only)[0].passed


def test_unknown_names_are_said(warehouse: duckdb.DuckDBPyConnection) -> None:
    with pytest.raises(UnknownName, match=r"'alpa'\. Did you mean 'alpha'"):
        run_checks(warehouse, declared_checks(), ["alpa"])
    with pytest.raises(UnknownName, match=r"the name of a check, got 'unique_token'\. Did you mean 'unique_tokens'"):
        run_checks(warehouse, declared_checks(), only=["unique_token"])
