"""The declaration of the stage `masking`: is a score faithful? What it names is masked, and the model runs again."""

from __future__ import annotations

from dataclasses import dataclass

from storage.tables import DOUBLE, INT, REAL, table
from tasks.stages.faithfulness.masking_grid import KEYS, MaskingGrid
from tasks.stages.registry import Stage

MASKING = table(
    "masking",
    {"doc": INT, **KEYS},
    nll_sum=DOUBLE,
    nll_clean_sum=DOUBLE,
    n_predicted=INT,
    masked_fraction=REAL,
)


@dataclass(frozen=True)
class MaskingParameters(MaskingGrid):
    """Parameters of the stage `masking` (methods.md §1, "Faithfulness by masking"): the grid."""

    def __post_init__(self) -> None:
        self.check("masking")


MASKING_STAGE = Stage(
    name="masking",
    version=1,
    parameters=MaskingParameters,
    reads=frozenset({"attention", "value", "residual"}),
    tables=(MASKING,),
    needs_model=True,
    fits=MaskingGrid.require_layers,
    on_request=True,
    module="tasks.stages.faithfulness.masking",
)
