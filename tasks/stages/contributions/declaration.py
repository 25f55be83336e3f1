"""The declaration of the stage `contributions`: what it reads, its parameters, its tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from storage.table_checks import Completeness
from tasks.stages.contract import Stage
from tasks.stages.contributions.tables import CONTRIBUTIONS_TABLES
from tasks.stages.parameters import Parameters, parameter


@dataclass(frozen=True)
class ContributionParameters(Parameters):
    """Parameters of the stage `contributions` (methods.md §1)."""

    stage: ClassVar[str] = "contributions"
    edges: int = parameter(8, "entries of largest |cw_intra| kept per query", least=1, most=65_536)
    bins: int = parameter(20, "equal bins of the sink rate over [0, 1] in sink_curve", least=1, most=4_096)
    resamples: int = parameter(
        2000, "bootstrap resamples of documents behind the interval of sink_fit", least=2, most=100_000
    )


CONTRIBUTIONS = Stage(
    name="contributions",
    version=1,
    parameters=ContributionParameters,
    reads=frozenset({"attention", "value"}),
    tables=CONTRIBUTIONS_TABLES,
    module="tasks.stages.contributions.steps",
    query="sink_suppression",
    summary="tasks.stages.contributions.summary:contribution_lines",
    completeness=(
        Completeness(
            "contribution_rows",
            "A finished run of contributions has a row for every kept layer, head and token of every document.",
            expected="documents.n_tokens::bigint * n_kept * n_heads",
        ),
    ),
)

STAGES = (CONTRIBUTIONS,)
