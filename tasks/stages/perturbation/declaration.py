"""The stages that perturb the residual stream: their tables, parameters, and what they read (methods.md §3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from storage.table_checks import Completeness
from storage.tables import BOUNDARY, DOUBLE, FLAG, INT, LAYER_SET, REAL, TEXT, Column, Declared, one_of, table
from tasks.stages.contract import Stage
from tasks.stages.faithfulness.choices_parameters import CLEAN
from tasks.stages.parameters import parameter
from tasks.stages.perturbation.grid import (
    INCLUDE,
    KEYS,
    PerturbationGrid,
    deltas_parameter,
    first_token_parameter,
    seeds_parameter,
)
from tasks.stages.perturbation.minimal_pairs_parameters import (
    CONDITION,
    MinimalPairsParameters,
    key_of_files,
    n_pairs,
    require_store,
)

if TYPE_CHECKING:
    from storage.store_shape import StoreShape
    from tasks.models.interventions import Part

TARGETS: tuple[Part, ...] = ("attention_output", "attention_weights", "norm_output", "mlp_output")
SETS = ("all", "first_half", "second_half", "each")
"""Which of the perturbed layers are repaired together; `each` alone."""


def _or_clean(keys: Mapping[str, Declared]) -> dict[str, Declared]:
    """The columns of a condition, in which the clean model has `none`."""
    return {n: replace(c, words=(*c.words, CLEAN)) if isinstance(c, Column) else c for n, c in keys.items()}


PERTURBATION = table(
    "perturbation",
    {"doc": INT, **KEYS},
    nll_sum=DOUBLE,
    nll_clean_sum=DOUBLE,
    n_predicted=INT,
    displacement_mean=REAL,
    displacement_max_error=REAL,
    norm_ratio_max=REAL,
    n_tokens=INT,
    unmoved=INT,
    flagged=FLAG,
    entropy=REAL,
    entropy_clean=REAL,
)
DISPLACEMENT = table(
    "displacement", {"doc": INT, **KEYS, "layer": BOUNDARY, "position": INT}, norm=REAL, displacement=REAL
)
PROPAGATION = table(
    "propagation",
    {"doc": INT, **KEYS, "layer": BOUNDARY},
    distance_mean=REAL,
    distance_first_token=REAL,
    n_tokens=INT,
)
REPAIR = table(
    "repair",
    {"doc": INT, **KEYS, "target": one_of(*TARGETS), "repaired_layers": LAYER_SET},
    nll_clean_sum=DOUBLE,
    nll_perturbed_sum=DOUBLE,
    nll_repaired_sum=DOUBLE,
    n_predicted=INT,
)
MINIMAL_PAIRS = table(
    "minimal_pairs",
    {"task": TEXT, "item": INT, **_or_clean(CONDITION)},
    logp_good=DOUBLE,
    logp_bad=DOUBLE,
    correct=FLAG,
    first_scored=FLAG,
    n_good=INT,
    n_bad=INT,
    n_tokens=INT,
    unmoved=INT,
)


@dataclass(frozen=True)
class PerturbationParameters(PerturbationGrid):
    """Parameters of the stage `perturbation`: the grid, and of how many documents each token's displacement is kept."""

    stage: ClassVar[str] = "perturbation"
    sampled: int = parameter(
        2, "documents of the table displacement, spread evenly over the capture; 0 for none", least=0, most=10_000
    )


@dataclass(frozen=True)
class PropagationParameters(PerturbationGrid):
    """Parameters of the stage `propagation`: the grid."""

    stage: ClassVar[str] = "propagation"
    deltas: tuple[float, ...] = deltas_parameter((5.0,))
    seeds: int = seeds_parameter(1)


@dataclass(frozen=True)
class RepairParameters(PerturbationGrid):
    """Parameters of the stage `repair`: the grid, and what is put back in which of the perturbed layers."""

    stage: ClassVar[str] = "repair"
    protocols: tuple[str, ...] = parameter(
        ("exact",), "exact (every token moves by δ), published (as the authors' code)", words=("exact", "published")
    )
    deltas: tuple[float, ...] = deltas_parameter((5.0,))
    first_token: tuple[str, ...] = first_token_parameter((INCLUDE,))
    seeds: int = seeds_parameter(1)
    targets: tuple[str, ...] = parameter(TARGETS, "parts of a layer whose clean values are put back", words=TARGETS)
    sets: tuple[str, ...] = parameter(
        SETS[:3], "which of the perturbed layers are repaired together; each: every one of them alone", words=SETS
    )

    def repaired(self, layers: tuple[int, ...]) -> list[tuple[int, ...]]:
        """The sets of these perturbed layers that are repaired together, each once; the first half is the larger."""
        half = (len(layers) + 1) // 2
        of_name = {"all": [layers], "first_half": [layers[:half]], "second_half": [layers[half:]]}
        of_name["each"] = [(layer,) for layer in layers]
        return list(dict.fromkeys(found for name in self.sets for found in of_name[name] if found))


def _leaving(parameters: PerturbationGrid, shape: StoreShape, _lengths: Sequence[int]) -> None:
    """What leaves each perturbed layer: where the replay begins, and what δ may be relative to."""
    parameters.require_residual(shape, lambda layers: [layer + 1 for layer in layers])


def _entering(parameters: PerturbationGrid, shape: StoreShape, _lengths: Sequence[int]) -> None:
    """And what enters the first of them, which may be repaired."""
    parameters.require_residual(shape, lambda layers: [layers[0], *(layer + 1 for layer in layers)])


def _following(parameters: PerturbationGrid, shape: StoreShape, _lengths: Sequence[int]) -> None:
    """And what leaves every later layer, in the clean run."""
    parameters.require_residual(shape, lambda layers: range(layers[0] + 1, shape.n_layers + 1))


def _stage(name: str, parameters: type, *tables: Any, **more: Any) -> Stage:
    """What the stages that perturb the captured documents have in common."""
    return Stage(
        name=name,
        version=2,
        parameters=parameters,
        reads=frozenset({"residual"}),
        tables=tables,
        module=f"tasks.stages.perturbation.{name}",
        needs_model=True,
        whole=frozenset(),
        on_request=True,
        surveys=True,
        summary=f"tasks.stages.perturbation.summary:{name}_lines",
        **more,
    )


PERTURBATION_STAGE = _stage(
    "perturbation",
    PerturbationParameters,
    PERTURBATION,
    DISPLACEMENT,
    require_store=_leaving,
    query="dissociation",
    completeness=(
        Completeness(
            "perturbation",
            "A finished run of perturbation has every document under every condition: each protocol, arm, δ, set of "
            "layers, first token in or out, and seed.",
            grid=(tuple(KEYS),),
        ),
    ),
)
REPAIR_STAGE = _stage(
    "repair",
    RepairParameters,
    REPAIR,
    require_store=_entering,
    query="repair_recovery",
    completeness=(
        Completeness(
            "repair",
            "A finished run of repair has every document under every perturbation and repair: each target in each set "
            "of layers.",
            grid=((*KEYS, "target", "repaired_layers"),),
        ),
    ),
)
PROPAGATION_STAGE = _stage(
    "propagation", PropagationParameters, PROPAGATION, require_store=_following, query="propagation_ratio"
)
MINIMAL_PAIRS_STAGE = Stage(
    name="minimal_pairs",
    version=1,
    parameters=MinimalPairsParameters,
    reads=frozenset(),
    tables=(MINIMAL_PAIRS,),
    module="tasks.stages.perturbation.minimal_pairs",
    needs_model=True,
    whole=frozenset(),
    on_request=True,
    require_store=require_store,
    key_of_files=key_of_files,
    unit="pairs",
    count_units=n_pairs,
    surveys=True,
    reads_texts=True,
    query="pair_accuracy",
    summary="tasks.stages.perturbation.minimal_pairs_summary:minimal_pairs_lines",
)

STAGES = (PERTURBATION_STAGE, MINIMAL_PAIRS_STAGE, REPAIR_STAGE, PROPAGATION_STAGE)
