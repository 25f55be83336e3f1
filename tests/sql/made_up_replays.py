"""Made-up losses of runs of the model with something changed: masking, sink_removal, head_ablation, pruning."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from tasks.stages.faithfulness.masking_grid import Cell, MaskingGrid
from tasks.stages.heads.pruning_parameters import STRATEGIES
from tests.sql.made_up import HEADS, LAYERS, TOKENS, Columns

GRID = MaskingGrid(
    scores=("raw", "vw", "vwon", "cw_intra", "cw_inter", "norm", "random"),
    rates=(0.1, 0.5, 1.0),
    reduce=("sum", "mean"),
    signs=("absolute", "signed"),
    draws=2,
)
"""Where every identity of masking has rows: both signs, both reductions, and a rate of 1."""


def masking_columns(docs: range, documents: Columns, grid: MaskingGrid = GRID) -> Columns:
    """Rows of these documents, alike where conditions mask the same by construction."""
    rows = [
        {
            "doc": doc,
            **cell.columns(),
            "layers": "all",
            "nll_sum": documents["nll_sum"][doc] + (TOKENS - 1) * damage(doc, cell),
            "nll_clean_sum": documents["nll_sum"][doc],
            "n_predicted": TOKENS - 1,
            # Of 20 candidates; keys go with as many entries as queries see them.
            "masked_fraction": int(cell.rate * 20) / 20,
        }
        for doc in docs
        for cell in grid.cells()
    ]
    return columns_of(rows)


def damage(doc: int, cell: Cell) -> float:
    """Nats a token."""
    everything = cell.rate == 1
    named = (doc, cell.ranking.scope if everything else cell.ranking.canonical(), cell.rate)
    drawn = np.random.default_rng(zlib.crc32(repr((*named, "" if everything else cell.direction)).encode()))
    return float(drawn.uniform(-0.2, 1))


def sink_columns(docs: range, documents: Columns) -> Columns:
    """Rows of these documents: each layer, then all."""
    rows = [
        {
            "doc": doc,
            "layers": layers,
            "nll_sum": documents["nll_sum"][doc] + 0.1 * (doc + 1) * (at + 1),
            "nll_clean_sum": documents["nll_sum"][doc],
            "n_predicted": TOKENS - 1,
        }
        for doc in docs
        for at, layers in enumerate([*map(str, range(LAYERS)), "all"])
    ]
    return columns_of(rows)


CRITICAL = (1, 2)


def ablation_columns(docs: range, documents: Columns) -> Columns:
    """Rows of these documents: each head alone."""
    rows = [
        {
            "doc": doc,
            "layer": layer,
            "head": head,
            "nll_sum": documents["nll_sum"][doc] + (TOKENS - 1) * ablation_damage(doc, layer, head),
            "nll_clean_sum": documents["nll_sum"][doc],
            "n_predicted": TOKENS - 1,
        }
        for doc in docs
        for layer in range(LAYERS)
        for head in range(HEADS)
    ]
    return columns_of(rows)


def ablation_damage(doc: int, layer: int, head: int) -> float:
    """Nats a token; head 2 of layer 1, of the class that most heads have, is one that matters."""
    drawn = np.random.default_rng([doc, layer, head, 9]).uniform(-0.02, 0.05)
    return float(drawn + ((layer, head) == CRITICAL))


RETENTIONS, SEEDS = (1.0, 0.7, 0.5), 3


def pruning_columns(docs: range, documents: Columns) -> Columns:
    """Rows of these documents: every strategy; where all heads stay nothing changes."""
    rows = [
        {
            "doc": doc,
            "strategy": strategy,
            "retention": retention,
            "seed": seed,
            "nll_sum": documents["nll_sum"][doc] + (TOKENS - 1) * pruning_damage(doc, strategy, retention, seed),
            "nll_clean_sum": documents["nll_sum"][doc],
            "n_predicted": TOKENS - 1,
            "heads_kept": {1.0: 8, 0.7: 6, 0.5: 4}[retention],
        }
        for doc in docs
        for strategy in STRATEGIES
        for seed in range(SEEDS if strategy == "random" else 1)
        for retention in RETENTIONS
    ]
    return columns_of(rows)


def pruning_damage(doc: int, strategy: str, retention: float, seed: int) -> float:
    """Nats a token."""
    drawn = np.random.default_rng([doc, STRATEGIES.index(strategy), int(10 * retention), seed])
    return 0.0 if retention == 1 else float(drawn.uniform(-0.1, 1))


def columns_of(rows: list[dict[str, Any]]) -> Columns:
    """Text as objects, so that a test may put a longer word in."""
    found = {name: [row[name] for row in rows] for name in rows[0]}
    return {n: np.asarray(cells, dtype=object if isinstance(cells[0], str) else None) for n, cells in found.items()}
