"""The stage `repair`: how much of a perturbation's damage goes when a part of some layers is as in the clean run.

With the perturbation still on, by the same noise, the clean run's attention output, attention weights, norm outputs or
MLP outputs are put back (methods.md §3). All of a document's runs begin at the first perturbed layer; of the clean
parts one document's of one target are in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from storage.errors import UsageError
from storage.numbers import spans
from tasks.models.interventions import Condition, Part, Restore
from tasks.stages.perturbation.declaration import TARGETS
from tasks.stages.perturbation.grid import KEYS, Cell, label, set_name
from tasks.stages.perturbation.norm_survey import combine_survey, medians, survey
from tasks.stages.replays import clean_losses, replay_of

if TYPE_CHECKING:
    from storage.tensors import ActivationStore, ShardReader
    from tasks.replay import CapturedReplay
    from tasks.stages.contract import Partial, Rows, StageContext
    from tasks.stages.perturbation.declaration import RepairParameters

__all__ = ["combine_survey", "per_shard", "survey"]


@dataclass(frozen=True)
class _Plan:
    """Cells that perturb the same layers, and what is put back where, target by target."""

    layers: tuple[int, ...]
    cells: tuple[Cell, ...]
    perturbed: tuple[Condition, ...]
    sets: dict[Part, list[tuple[int, ...]]]

    @property
    def n_runs(self) -> int:
        """Of a document: perturbed, and repaired."""
        return len(self.cells) * (1 + sum(len(of_target) for of_target in self.sets.values()))


def per_shard(
    store: ActivationStore, shard: ShardReader, parameters: RepairParameters, context: StageContext, rows: Rows
) -> tuple[Partial, dict[str, int]]:
    """Rows per document, cell, target and set of repaired layers of one shard."""
    n_layers, replay = store.shape.n_layers, replay_of(context)
    of_layer, plans = medians(context.survey), []
    for layers, of_set in groupby(parameters.cells(n_layers), key=lambda cell: cell.layers):
        cells = tuple(of_set)
        perturbed = tuple(cell.condition(of_layer, context.seed) for cell in cells)
        plans.append(_Plan(layers, cells, perturbed, _sets(replay, parameters, layers)))
    pairs = len(store.shape.kept_layers) / sum(plan.n_runs for plan in plans)
    for plan in plans:
        for document in shard.documents:
            found = _document(plan, document, context, pairs)
            rows.add("repair", _columns(found, plan, shard, document, n_layers))
    return {}, {}


def _sets(
    replay: CapturedReplay, parameters: RepairParameters, layers: tuple[int, ...]
) -> dict[Part, list[tuple[int, ...]]]:
    """Target → sets of layers, of those that have such a part. UsageError for a target that none of them has."""
    found: dict[Part, list[tuple[int, ...]]] = {}
    for target in TARGETS:
        if target not in parameters.targets:
            continue
        there = replay.replayer.layers_with(target)
        of_target = [tuple(layer for layer in each if layer in there) for each in parameters.repaired(layers)]
        found[target] = list(dict.fromkeys(each for each in of_target if each))
        if not found[target]:
            raise UsageError(
                f"a part that can be put back in layers {spans(layers)}",
                got=f"{target}, which this model's code does not show there",
                where="repair.targets",
                remedy=f"Leave {target} out of repair.targets.",
            )
    return found


def _document(plan: _Plan, document: int, context: StageContext, pairs: float) -> Partial:
    """perturbed: losses (cells,); and of each target (sets, cells): a piece of work that is kept."""
    done, replay = 0, replay_of(context)

    def losses(conditions: Sequence[Condition]) -> np.ndarray:
        nonlocal done
        sums = np.full(len(conditions), np.nan)
        for one in replay.run(plan.layers[0], conditions, [document]):
            sums[one.condition] = one.nll_sum
            done += 1
            context.advance(pairs)
        return sums

    def compute() -> Partial:
        found = {"perturbed": losses(plan.perturbed)}
        for target, sets in plan.sets.items():
            conditions = _repaired(plan, target, sets, replay, document)
            found[target] = losses(conditions).reshape(len(sets), len(plan.cells))
        return found

    kept = context.once(f"{set_name(plan.layers)}-{document}", compute)
    if left := plan.n_runs - done:  # of an earlier try
        context.advance(pairs * left, True)
    return kept


def _repaired(
    plan: _Plan, target: Part, sets: Sequence[tuple[int, ...]], replay: CapturedReplay, document: int
) -> list[Condition]:
    """Of every set and cell: the perturbation, and the clean parts of one document."""
    starts = list(replay.starts(plan.layers[0], [document]))
    layers = frozenset(layer for each in sets for layer in each)
    clean = replay.replayer.parts(plan.layers[0], starts, {target: layers})
    return [
        (*perturbed, *(Restore(layer, target, clean[target, layer]) for layer in each))
        for each in sets
        for perturbed in plan.perturbed
    ]


def _columns(found: Partial, plan: _Plan, shard: ShardReader, document: int, n_layers: int) -> dict[str, Any]:
    """Rows of a document: targets, sets and cells in this order."""
    of_cells = [cell.columns(n_layers) for cell in plan.cells]
    sets = [(target, label(each, n_layers)) for target, of_target in plan.sets.items() for each in of_target]
    clean = clean_losses(shard, [document])
    return {
        "doc": np.int32(document),
        **{name: [columns[name] for columns in of_cells] * len(sets) for name in KEYS},
        "target": [target for target, _ in sets for _ in plan.cells],
        "repaired_layers": [layers for _, layers in sets for _ in plan.cells],
        "nll_clean_sum": clean["nll_clean_sum"][0],
        "nll_perturbed_sum": np.tile(found["perturbed"], len(sets)),
        "nll_repaired_sum": np.concatenate([found[target].ravel() for target in plan.sets]),
        "n_predicted": clean["n_predicted"][0],
    }
