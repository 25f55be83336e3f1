"""The stages about heads and the tokens they select: their tables, parameters, and what they read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from storage.errors import UsageError
from storage.table_checks import Completeness
from storage.tables import DOUBLE, INT, REAL, one_of, table
from tasks.stages.contract import Stage
from tasks.stages.heads.pruning_parameters import KNOWN, PruningParameters
from tasks.stages.heads.tables import DISTANCES, RANKINGS, SELECTION_ROWS, SINK_STATISTICS, SINKS, TAXONOMY_ROWS
from tasks.stages.parameters import NoParameters, Parameters, parameter

HEAD_ABLATION = table(
    "head_ablation",
    {"doc": INT, "layer": INT, "head": INT},
    nll_sum=DOUBLE,
    nll_clean_sum=DOUBLE,
    n_predicted=INT,
)
PRUNING = table(
    "pruning",
    {"doc": INT, "strategy": one_of(*KNOWN), "retention": REAL, "seed": INT},
    nll_sum=DOUBLE,
    nll_clean_sum=DOUBLE,
    n_predicted=INT,
    heads_kept=INT,
)
_MOST_QUERIES = 1_000_000


@dataclass(frozen=True)
class SelectionParameters(Parameters):
    """Parameters of the stage `selection` (methods.md §2)."""

    stage: ClassVar[str] = "selection"
    queries: int | str = parameter(
        "every", "the queries of each document: every, final (the last position alone), or so many, drawn by the seed"
    )
    rankings: tuple[str, ...] = parameter(
        RANKINGS, "how keys are ranked: by attention α or contribution α‖v‖", words=RANKINGS, in_order=True
    )
    distances: tuple[str, ...] = parameter(DISTANCES, "distances from the aggregate", words=DISTANCES, in_order=True)
    sinks: tuple[str, ...] = parameter(SINKS, "whether position 0 is a candidate", words=SINKS, in_order=True)
    n: tuple[int, ...] = parameter(
        (1, 2, 4, 8, 16, 32, 64, 128, 256), "sizes N of a selection", least=1, most=4_096, repeats=True
    )
    random_rankings: int = parameter(
        16, "random rankings of the control, each shared by all N; 0 for none", least=0, most=1_024
    )
    random_queries: int = parameter(
        32, "queries of each document and layer for which the control is drawn; 0 for none", least=0, most=65_536
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "queries", _queries(self.queries))
        object.__setattr__(self, "n", tuple(sorted(set(self.n))))


def _queries(value: Any) -> int | str:
    """The parameter as a word or a number. Raises UsageError for anything else."""
    if value in ("every", "final"):
        return str(value)
    text = str(value)
    if isinstance(value, bool) or not text.isdecimal() or not 1 <= int(text) <= _MOST_QUERIES:
        expected = f"every, final, or a number of queries from 1 to {_MOST_QUERIES:,}"
        raise UsageError(expected, got=repr(value), where="selection.queries")
    return int(text)


@dataclass(frozen=True)
class TaxonomyParameters(NoParameters):
    """The stage `taxonomy` has none: all three rules are counted at once."""

    stage: ClassVar[str] = "taxonomy"


@dataclass(frozen=True)
class HeadAblationParameters(NoParameters):
    """The stage `head_ablation` has none: every head of every layer that the store keeps, alone."""

    stage: ClassVar[str] = "head_ablation"


SELECTION = Stage(
    name="selection",
    version=1,
    parameters=SelectionParameters,
    reads=frozenset({"attention", "value"}),
    tables=(SELECTION_ROWS, SINK_STATISTICS),
    module="tasks.stages.heads.selection",
    on_request=True,
    query="separability",
    summary="tasks.stages.heads.summary:selection_lines",
)
TAXONOMY = Stage(
    name="taxonomy",
    version=1,
    parameters=TaxonomyParameters,
    reads=frozenset({"attention", "value"}),
    tables=(TAXONOMY_ROWS,),
    module="tasks.stages.heads.taxonomy",
    query="head_classes",
    summary="tasks.stages.heads.summary:taxonomy_lines",
)
PRUNING_STAGE = Stage(
    name="pruning",
    version=1,
    parameters=PruningParameters,
    reads=frozenset({"attention", "value", "residual"}),
    tables=(PRUNING,),
    module="tasks.stages.heads.pruning",
    needs_model=True,
    on_request=True,
    surveys=True,
    require_store=PruningParameters.require_store,
    query="pruning_curve",
    summary="tasks.stages.heads.summary:pruning_lines",
    completeness=(
        Completeness(
            "pruning",
            "A finished run of pruning has every document under every condition: each strategy, and each seed of "
            "random, at each retention.",
            grid=(("strategy", "seed"), ("retention",)),
        ),
    ),
)
HEAD_ABLATION_STAGE = Stage(
    name="head_ablation",
    version=1,
    parameters=HeadAblationParameters,
    reads=frozenset({"residual"}),
    tables=(HEAD_ABLATION,),
    module="tasks.stages.heads.head_ablation",
    needs_model=True,
    whole=frozenset(),
    on_request=True,
    query="critical_heads",
    summary="tasks.stages.heads.summary:head_ablation_lines",
    completeness=(
        Completeness(
            "head_ablation",
            "A finished run of head_ablation has every head of each kept layer of every document.",
            expected="n_heads * n_kept",
        ),
    ),
)

STAGES = (SELECTION, TAXONOMY, PRUNING_STAGE, HEAD_ABLATION_STAGE)
