"""The declarations of the stages that perturb the residual stream: what they read, their parameters, their tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from storage.errors import UnknownName, UsageError
from storage.tables import DOUBLE, FLAG, INT, REAL, TEXT, table
from tasks.stages.perturbation.grid import INCLUDE, KEYS, PerturbationGrid, once_each
from tasks.stages.registry import Stage

if TYPE_CHECKING:
    from storage.store_shape import StoreShape
    from tasks.models.interventions import Part

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
DISPLACEMENT = table("displacement", {"doc": INT, **KEYS, "layer": INT, "position": INT}, norm=REAL, displacement=REAL)
PROPAGATION = table(
    "propagation",
    {"doc": INT, **KEYS, "layer": INT},
    distance_mean=REAL,
    distance_first_token=REAL,
    n_tokens=INT,
)
REPAIR = table(
    "repair",
    {"doc": INT, **KEYS, "target": TEXT, "repaired_layers": TEXT},
    nll_clean_sum=DOUBLE,
    nll_perturbed_sum=DOUBLE,
    nll_repaired_sum=DOUBLE,
    n_predicted=INT,
)

TARGETS: tuple[Part, ...] = ("attention_output", "attention_weights", "norm_output", "mlp_output")
SETS = ("all", "first_half", "second_half", "each")
"""Which of the perturbed layers are repaired together; `each` alone."""
_MOST_SAMPLED = 10_000


@dataclass(frozen=True)
class PerturbationParameters(PerturbationGrid):
    """Parameters of the stage `perturbation`: the grid, and of how many documents each token's displacement is kept."""

    sampled: int = 2
    """Documents of the table displacement, spread evenly over the capture; 0 for none."""

    def __post_init__(self) -> None:
        self.check("perturbation")
        if not 0 <= self.sampled <= _MOST_SAMPLED:
            got = str(self.sampled)
            raise UsageError(f"from 0 to {_MOST_SAMPLED:,} documents", got=got, where="perturbation.sampled")


@dataclass(frozen=True)
class PropagationParameters(PerturbationGrid):
    """Parameters of the stage `propagation`: the grid."""

    deltas: tuple[float, ...] = (5.0,)
    seeds: int = 1

    def __post_init__(self) -> None:
        self.check("propagation")


@dataclass(frozen=True)
class RepairParameters(PerturbationGrid):
    """Parameters of the stage `repair`: the grid, and what is put back in which of the perturbed layers."""

    protocols: tuple[str, ...] = ("exact",)
    deltas: tuple[float, ...] = (5.0,)
    first_token: tuple[str, ...] = (INCLUDE,)
    seeds: int = 1
    targets: tuple[str, ...] = TARGETS
    """Parts of a layer whose clean values are put back."""
    sets: tuple[str, ...] = SETS[:3]
    """Which of the perturbed layers are repaired together: all, first_half, second_half; `each` of them alone."""

    def __post_init__(self) -> None:
        self.check("repair")
        for name, known in (("targets", TARGETS), ("sets", SETS)):
            for value in getattr(self, name):
                if value not in known:
                    raise UnknownName.among(name.removesuffix("s"), value, known, where=f"repair.{name}")
            once_each(getattr(self, name), f"repair.{name}")

    def repaired(self, layers: tuple[int, ...]) -> list[tuple[int, ...]]:
        """The sets of these perturbed layers that are repaired together, each once; the first half is the larger."""
        half = (len(layers) + 1) // 2
        of_name = {"all": [layers], "first_half": [layers[:half]], "second_half": [layers[half:]]}
        of_name["each"] = [(layer,) for layer in layers]
        return list(dict.fromkeys(found for name in self.sets for found in of_name[name] if found))


def _leaving(parameters: PerturbationGrid, shape: StoreShape) -> None:
    """What leaves each perturbed layer: where the replay begins, and what δ may be relative to."""
    parameters.require_residual(shape, lambda layers: [layer + 1 for layer in layers])


def _entering(parameters: PerturbationGrid, shape: StoreShape) -> None:
    """And what enters the first of them, which may be repaired."""
    parameters.require_residual(shape, lambda layers: [layers[0], *(layer + 1 for layer in layers)])


def _following(parameters: PerturbationGrid, shape: StoreShape) -> None:
    """And what leaves every later layer, in the clean run."""
    parameters.require_residual(shape, lambda layers: range(layers[0] + 1, shape.n_layers + 1))


PERTURBATION_STAGE = Stage(
    name="perturbation",
    version=2,
    parameters=PerturbationParameters,
    reads=frozenset({"residual"}),
    tables=(PERTURBATION, DISPLACEMENT),
    needs_model=True,
    on_request=True,
    module="tasks.stages.perturbation.perturbation",
    whole=frozenset(),
    fits=_leaving,
    surveys=True,
)
REPAIR_STAGE = Stage(
    name="repair",
    version=2,
    parameters=RepairParameters,
    reads=frozenset({"residual"}),
    tables=(REPAIR,),
    needs_model=True,
    on_request=True,
    module="tasks.stages.perturbation.repair",
    whole=frozenset(),
    fits=_entering,
    surveys=True,
)
PROPAGATION_STAGE = Stage(
    name="propagation",
    version=2,
    parameters=PropagationParameters,
    reads=frozenset({"residual"}),
    tables=(PROPAGATION,),
    needs_model=True,
    on_request=True,
    module="tasks.stages.perturbation.propagation",
    whole=frozenset(),
    fits=_following,
    surveys=True,
)
