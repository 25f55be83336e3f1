"""The stages that mask: is a score faithful to what the model needs? Their tables, and what they read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from storage.table_checks import Completeness
from storage.tables import DOUBLE, INT, LAYER_SET, REAL, TEXT, Column, Declared, table
from tasks.stages.contract import Stage
from tasks.stages.faithfulness.choices_parameters import CLEAN, ChoicesParameters, key_of_files, n_items
from tasks.stages.faithfulness.masking_grid import KEYS, MaskingGrid
from tasks.stages.parameters import NoParameters


def _or_clean(keys: Mapping[str, Declared]) -> dict[str, Declared]:
    """The columns of a condition, in which the clean model has `none`."""
    return {n: replace(c, words=(*c.words, CLEAN)) if isinstance(c, Column) else c for n, c in keys.items()}


MASKING = table(
    "masking",
    {"doc": INT, **KEYS},
    nll_sum=DOUBLE,
    nll_clean_sum=DOUBLE,
    n_predicted=INT,
    masked_fraction=REAL,
)
CHOICES = table(
    "choices",
    {"task": TEXT, "item": INT, **_or_clean(KEYS)},
    label=INT,
    picked=INT,
    picked_normalised=INT,
    margin=DOUBLE,
    n_choices=INT,
)
SINK_REMOVAL = table(
    "sink_removal", {"doc": INT, "layers": LAYER_SET}, nll_sum=DOUBLE, nll_clean_sum=DOUBLE, n_predicted=INT
)


@dataclass(frozen=True)
class MaskingParameters(MaskingGrid):
    """Parameters of the stage `masking` (methods.md §1, "Faithfulness by masking"): the grid."""

    stage: ClassVar[str] = "masking"


@dataclass(frozen=True)
class SinkParameters(NoParameters):
    """The stage `sink` (methods.md §1, "Semantic cone") has none: every layer alone, then all at once."""

    stage: ClassVar[str] = "sink"


MASKING_STAGE = Stage(
    name="masking",
    version=1,
    parameters=MaskingParameters,
    reads=frozenset({"attention", "value", "residual"}),
    tables=(MASKING,),
    module="tasks.stages.faithfulness.masking",
    needs_model=True,
    on_request=True,
    require_store=MaskingGrid.require_layers,
    query="score_hierarchy",
    summary="tasks.stages.faithfulness.summary:masking_lines",
    completeness=(
        Completeness(
            "masking",
            "A finished run of masking has every document under every condition: each ranking in each direction at "
            "each rate.",
            grid=(
                ("scope", "reduce", "sign", "keep_first", "layers", "score", "draw"),
                ("direction",),
                ("rate",),
            ),
        ),
    ),
)
CHOICES_STAGE = Stage(
    name="choices",
    version=2,
    parameters=ChoicesParameters,
    reads=frozenset(),
    tables=(CHOICES,),
    module="tasks.stages.faithfulness.choices",
    needs_model=True,
    whole=frozenset(),
    on_request=True,
    key_of_files=key_of_files,
    unit="items",
    count_units=n_items,
    reads_texts=True,
    query="choice_accuracy",
    summary="tasks.stages.faithfulness.summary:choices_lines",
)
SINK_STAGE = Stage(
    name="sink",
    version=1,
    parameters=SinkParameters,
    reads=frozenset({"residual"}),
    tables=(SINK_REMOVAL,),
    module="tasks.stages.faithfulness.sink",
    needs_model=True,
    whole=frozenset(),
    on_request=True,
    query="sink_removal_effect",
    summary="tasks.stages.faithfulness.summary:sink_lines",
)

STAGES = (MASKING_STAGE, CHOICES_STAGE, SINK_STAGE)
