"""The declarations of the stages that zero whole heads: what they read, their parameters, their tables."""

from __future__ import annotations

from dataclasses import dataclass

from storage.tables import DOUBLE, INT, table
from tasks.registry import Stage

HEAD_ABLATION = table(
    "head_ablation",
    {"doc": INT, "layer": INT, "head": INT},
    nll_sum=DOUBLE,
    nll_clean_sum=DOUBLE,
    n_predicted=INT,
)


@dataclass(frozen=True)
class HeadAblationParameters:
    """The stage `head_ablation` has none: every head of every layer that the store keeps, alone."""


HEAD_ABLATION_STAGE = Stage(
    name="head_ablation",
    version=1,
    parameters=HeadAblationParameters,
    reads=frozenset({"residual"}),
    tables=(HEAD_ABLATION,),
    needs_model=True,
    on_request=True,
    module="tasks.stages.head_ablation",
    whole=frozenset(),
)
