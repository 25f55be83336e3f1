"""The declaration of the stage `sink`: the loss with the first token's values zeroed."""

from __future__ import annotations

from dataclasses import dataclass

from storage.tables import DOUBLE, INT, TEXT, table
from tasks.stages.registry import Stage

SINK_REMOVAL = table(
    "sink_removal", {"doc": INT, "layers": TEXT}, nll_sum=DOUBLE, nll_clean_sum=DOUBLE, n_predicted=INT
)


@dataclass(frozen=True)
class SinkParameters:
    """The stage has none (methods.md §1, "Semantic cone"): every layer alone, then all at once."""


SINK = Stage(
    name="sink",
    version=1,
    parameters=SinkParameters,
    reads=frozenset({"residual"}),
    tables=(SINK_REMOVAL,),
    needs_model=True,
    on_request=True,
    module="tasks.stages.faithfulness.sink",
    whole=frozenset(),
)
