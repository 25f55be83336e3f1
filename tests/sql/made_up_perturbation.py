"""Made-up rows of the stages `perturbation`, `propagation` and `repair`: tokens of which one is long and one short."""

from __future__ import annotations

import zlib
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from tasks.stages.perturbation.declaration import TARGETS, RepairParameters
from tasks.stages.perturbation.grid import INCLUDE, RELATIVE, Cell, PerturbationGrid, label
from tests.sql.made_up import DOCS, LAYERS, TOKENS, Columns
from tests.sql.made_up_replays import columns_of

GRID = PerturbationGrid(deltas=(0.5, 1.0), relative_deltas=(0.1,), layers=("all", "each"), seeds=2)
REPAIRS = RepairParameters(deltas=(1.0,), seeds=2, layers=("all",))
SAMPLED = (0, 2)
MEDIAN = 4.0
"""What a relative δ is relative to, in every layer."""


def drawn(*named: Any) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(repr(named).encode()))


@cache
def tokens(doc: int, cell: Cell, layer: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """‖h‖, ‖h′ − h‖ and whether it was moved, (T,): token 0 is long, and token 1 not as long as a δ of 1."""
    norm = drawn(doc, layer).uniform(3, 5, TOKENS)
    norm[0], norm[1] = 60, 0.8
    delta, may = of_layer(cell), np.arange(TOKENS) >= (cell.first_token != INCLUDE)
    moved = may & (norm > delta) if cell.protocol == "exact" else may
    step = np.full(TOKENS, delta)
    if (cell.protocol, cell.arm) == ("published", "angle"):
        step = delta * norm / norm[may].mean()
    return norm, np.where(moved, step, 0), moved


def of_layer(cell: Cell) -> float:
    return cell.delta * MEDIAN if cell.delta_kind == RELATIVE else cell.delta


def damage(doc: int, cell: Cell, *named: Any) -> float:
    """Nats a token."""
    return float(drawn(doc, cell, *named).uniform(0.1, 1) * (3 if cell.arm == "angle" else 1))


def losses(documents: Columns, doc: int) -> dict[str, Any]:
    return {"nll_clean_sum": documents["nll_sum"][doc], "n_predicted": TOKENS - 1}


def perturbation_columns(docs: range, documents: Columns) -> Columns:
    rows = []
    for doc in docs:
        for cell in GRID.cells(LAYERS):
            of_layers = [tokens(doc, cell, layer) for layer in cell.layers]
            norm, step, moved = (np.concatenate(parts) for parts in zip(*of_layers, strict=True))
            n_tokens = len(cell.layers) * (TOKENS - (cell.first_token != INCLUDE))
            unmoved, delta = n_tokens - int(moved.sum()), of_layer(cell)
            rows.append(
                {
                    "doc": doc,
                    **cell.columns(LAYERS),
                    "nll_sum": documents["nll_sum"][doc] + (TOKENS - 1) * damage(doc, cell),
                    **losses(documents, doc),
                    "displacement_mean": step[moved].mean(),
                    "displacement_max_error": np.abs(step[moved] / delta - 1).max(),
                    "norm_ratio_max": norm[moved].max() / delta,
                    "n_tokens": n_tokens,
                    "unmoved": unmoved,
                    "flagged": unmoved > 0.05 * n_tokens,
                    "entropy": 1.5 + damage(doc, cell, "entropy"),
                    "entropy_clean": 1.5,
                }
            )
    return columns_of(rows)


def displacement_columns(docs: range, documents: Columns) -> Columns:
    rows = [
        {
            "doc": doc,
            **cell.columns(LAYERS),
            "layer": layer,
            "position": position,
            "norm": tokens(doc, cell, layer)[0][position],
            "displacement": tokens(doc, cell, layer)[1][position],
        }
        for doc in docs
        if doc in SAMPLED
        for cell in GRID.cells(LAYERS)
        for layer in cell.layers
        for position in range(TOKENS)
    ]
    return columns_of(rows)


def distance(doc: int, cell: Cell, layer: int) -> np.ndarray:
    """Of each token, (T,): what was moved where the perturbation begins, and more behind."""
    start = tokens(doc, cell, cell.layers[0])[1]
    grown = layer > cell.layers[0]
    return start * (damage(doc, cell, "distance", layer) + 1) if grown else start


def propagation_columns(docs: range, documents: Columns) -> Columns:
    rows = [
        {
            "doc": doc,
            **cell.columns(LAYERS),
            "layer": layer,
            "distance_mean": distance(doc, cell, layer).mean(),
            "distance_first_token": distance(doc, cell, layer)[0],
            "n_tokens": TOKENS,
        }
        for doc in docs
        for cell in GRID.cells(LAYERS)
        for layer in range(cell.layers[0], LAYERS)
    ]
    return columns_of(rows)


def repaired_damage(doc: int, cell: Cell, target: str, layers: tuple[int, ...]) -> float:
    """Nats a token that are left; a relative δ does next to none, and the first layer's own parts are clean anyway."""
    whole = perturbed_damage(doc, cell)
    return whole if layers == cell.layers[:1] else whole * drawn(doc, cell, target, layers).uniform(0.5, 1.1)


def perturbed_damage(doc: int, cell: Cell) -> float:
    return damage(doc, cell) * (0.001 if cell.delta_kind == RELATIVE else 1)


def repair_columns(docs: range, documents: Columns) -> Columns:
    rows = [
        {
            "doc": doc,
            **cell.columns(LAYERS),
            "target": target,
            "repaired_layers": label(layers, LAYERS),
            **losses(documents, doc),
            "nll_perturbed_sum": documents["nll_sum"][doc] + (TOKENS - 1) * perturbed_damage(doc, cell),
            "nll_repaired_sum": documents["nll_sum"][doc] + (TOKENS - 1) * repaired_damage(doc, cell, target, layers),
        }
        for doc in docs
        for cell in REPAIRS.cells(LAYERS)
        for target in TARGETS
        for layers in REPAIRS.repaired(cell.layers)
    ]
    return columns_of(rows)


def cells(**wanted: Any) -> list[Cell]:
    """The cells of GRID, or of REPAIRS with `repair`, that are as wanted."""
    grid = REPAIRS if wanted.pop("repair", False) else GRID
    return [cell for cell in grid.cells(LAYERS) if replace(cell, **wanted) == cell]


ALL_DOCS = range(DOCS)
