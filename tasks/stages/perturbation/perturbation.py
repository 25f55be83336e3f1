"""The stage `perturbation`: the loss, and how even attention is, with the residual stream moved in length or direction.

Every perturbed layer's output is moved by δ as it is in the perturbed run, and the model runs again from the first of
them (methods.md §3). What was really moved, after the cast to the model's dtype, is measured token by token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.models.interventions import CLEAN
from tasks.models.observation import Observables, Observed
from tasks.stages.perturbation.grid import KEYS, Cell, set_name
from tasks.stages.perturbation.norm_survey import combine_survey, medians, survey
from tasks.stages.replays import clean_losses, losses, pieces, replay_of

if TYPE_CHECKING:
    from storage.tensors import ActivationStore, ShardReader
    from tasks.replay import CapturedReplay
    from tasks.stages.contract import Partial, Rows, StageContext
    from tasks.stages.perturbation.declaration import PerturbationParameters

__all__ = ["combine_survey", "per_shard", "survey"]

_FIGURES = ("displacement_mean", "displacement_max_error", "norm_ratio_max", "n_tokens", "unmoved")
_MOST_UNMOVED = 0.05
"""A row of which a larger share of tokens stayed is flagged."""
_ROWS = 1 << 18
"""Rows of the table displacement that are made at once."""


def per_shard(
    store: ActivationStore, shard: ShardReader, parameters: PerturbationParameters, context: StageContext, rows: Rows
) -> tuple[Partial, dict[str, int]]:
    """Rows per document and cell of one shard, the sampled documents' tokens, and how many rows are flagged."""
    n_layers, replay = store.shape.n_layers, replay_of(context)
    cells, of_layer = list(parameters.cells(n_layers)), medians(context.survey)
    lowest = min(cell.layers[0] for cell in cells) + 1
    pairs = len(store.shape.kept_layers) / (len(cells) + 1)
    clean = _clean_entropies(context, shard, lowest, n_layers, pairs)
    sampled, quality = _sampled(replay, parameters.sampled), {"flagged_rows": 0, "rows_without_entropy": 0}
    for layers, of_set in groupby(cells, key=lambda cell: cell.layers):
        together = list(of_set)
        conditions = [cell.condition(of_layer, context.seed) for cell in together]
        for documents in pieces(shard, len(together), replay.batch_tokens):
            seen = _Figures.of(documents, together, sampled)
            name = f"{set_name(layers)}-{documents[0]}"
            found = losses(
                context,
                name,
                layers[0] + 1,
                conditions,
                documents,
                pairs,
                seen.arrays,
                observables=seen.observables,
                see=seen.see,
            )
            base = np.array([_mean_after(clean[doc], layers[0]) for doc in documents])
            columns = _columns(found, together, shard, documents, base, n_layers)
            rows.add("perturbation", columns)
            quality["flagged_rows"] += int(columns["flagged"].sum())
            quality["rows_without_entropy"] += int(np.isnan(columns["entropy"]).sum())
            _add_tokens(rows, found, together, shard, [doc for doc in documents if doc in sampled], n_layers)
    return {}, {name: n for name, n in quality.items() if n}


@dataclass
class _Figures:
    """What is kept of what a replay was watched for, document by document and cell by cell."""

    documents: Sequence[int]
    cells: Sequence[Cell]
    sampled: frozenset[int]
    by_cell: dict[str, np.ndarray]
    tokens: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)

    observables = Observables(displaced=True, entropy=True)

    @classmethod
    def of(cls, documents: Sequence[int], cells: Sequence[Cell], sampled: frozenset[int]) -> _Figures:
        shape = len(documents), len(cells)
        return cls(documents, cells, sampled, {name: np.full(shape, np.nan) for name in (*_FIGURES, "entropy")})

    def see(self, document: int, condition: int, seen: Observed) -> None:
        """One document under one condition."""
        at = self.documents.index(document), condition
        for name, value in _figures(seen).items():
            self.by_cell[name][at] = value
        layers = self.cells[condition].layers
        self.by_cell["entropy"][at] = _mean_after(_by_layer(seen, max(seen.entropy, default=-1) + 1), layers[0])
        if document in self.sampled:
            of_layers = [seen.displacements[layer] for layer in layers]
            norms = np.concatenate([one.norm for one in of_layers])
            self.tokens[at] = norms, np.concatenate([one.displacement for one in of_layers])

    def arrays(self) -> Partial:
        """(documents, cells) of each figure, and the sampled documents' tokens one after the other."""
        in_order = [self.tokens[at] for at in sorted(self.tokens)]
        empty = np.empty(0, np.float32)
        return {
            **self.by_cell,
            "norm": np.concatenate([norm for norm, _ in in_order] or [empty]).astype(np.float32),
            "displacement": np.concatenate([moved for _, moved in in_order] or [empty]).astype(np.float32),
        }


def _figures(seen: Observed) -> dict[str, float]:
    """Over the moved tokens of all perturbed layers: their mean displacement, and the largest error of one."""
    of_layers = list(seen.displacements.values())
    moved = np.concatenate([one.displacement[one.moved] for one in of_layers])
    delta = np.concatenate([np.full(int(one.moved.sum()), one.delta) for one in of_layers])
    norm = np.concatenate([one.norm[one.moved] for one in of_layers])
    n_tokens = sum(len(one.norm) - one.first for one in of_layers)
    some = len(moved) > 0
    return {
        "displacement_mean": float(moved.mean()) if some else np.nan,
        "displacement_max_error": float(np.abs(moved / delta - 1).max()) if some else np.nan,
        "norm_ratio_max": float((norm / delta).max()) if some else np.nan,
        "n_tokens": n_tokens,
        "unmoved": n_tokens - len(moved),
    }


def _clean_entropies(
    context: StageContext, shard: ShardReader, start: int, n_layers: int, pairs: float
) -> dict[int, np.ndarray]:
    """Document → the clean run's entropy of each layer from `start`, (L,), NaN where there is none."""
    found: dict[int, np.ndarray] = {}
    for documents in pieces(shard, 1, replay_of(context).batch_tokens):
        found.update(zip(documents, _clean_piece(context, documents, start, n_layers, pairs), strict=True))
    return found


def _clean_piece(
    context: StageContext, documents: Sequence[int], start: int, n_layers: int, pairs: float
) -> np.ndarray:
    of_document: dict[int, np.ndarray] = {}

    def see(document: int, _condition: int, seen: Observed) -> None:
        of_document[document] = _by_layer(seen, n_layers)

    def beside() -> Partial:
        return {"entropy": np.stack([of_document[document] for document in documents])}

    observables, name = Observables(entropy=True), f"clean-{documents[0]}"
    return losses(context, name, start, [CLEAN], documents, pairs, beside, observables=observables, see=see)["entropy"]


def _by_layer(seen: Observed, n_layers: int) -> np.ndarray:
    found = np.full(n_layers, np.nan)
    for layer, entropy in seen.entropy.items():
        found[layer] = entropy
    return found


def _mean_after(by_layer: np.ndarray, first: int) -> float:
    """The mean over the layers after `first` that have attention which the tap reaches; NaN where there is none."""
    after = by_layer[first + 1 :]
    after = after[~np.isnan(after)]
    return float(after.mean()) if len(after) else float("nan")


def _columns(
    found: Partial, cells: Sequence[Cell], shard: ShardReader, documents: Sequence[int], base: np.ndarray, n_layers: int
) -> dict[str, Any]:
    """Rows of every document and cell, (documents, cells) raveled."""
    n_cells, of_cells = len(cells), [cell.columns(n_layers) for cell in cells]
    return {
        "doc": np.repeat(np.array(documents, np.int32), n_cells),
        **{name: [columns[name] for columns in of_cells] * len(documents) for name in KEYS},
        "nll_sum": found["nll_sum"].ravel(),
        **{name: np.repeat(values, n_cells) for name, values in clean_losses(shard, documents).items()},
        **{name: found[name].ravel() for name in (*_FIGURES, "entropy")},
        "n_tokens": found["n_tokens"].ravel().astype(np.int32),
        "unmoved": found["unmoved"].ravel().astype(np.int32),
        "flagged": (found["unmoved"] > _MOST_UNMOVED * found["n_tokens"]).ravel(),
        "entropy_clean": np.repeat(base, n_cells),
    }


def _sampled(replay: CapturedReplay, n: int) -> frozenset[int]:
    """So many documents of the capture, spread evenly, the first among them."""
    documents = replay.documents
    return frozenset(documents[k * len(documents) // n] for k in range(min(n, len(documents)))) if n else frozenset()


def _add_tokens(
    rows: Rows, found: Partial, cells: Sequence[Cell], shard: ShardReader, documents: Sequence[int], n_layers: int
) -> None:
    """Rows of the table displacement, some cells of a document at a time; all cells perturb the same layers."""
    start, lengths, layers = 0, dict(zip(shard.documents, shard.lengths, strict=True)), cells[0].layers
    for doc in documents:
        n = lengths[doc] * len(layers)
        together = max(1, _ROWS // n)
        for first in range(0, len(cells), together):
            of_cells = [cell.columns(n_layers) for cell in cells[first : first + together]]
            part = slice(start, start + n * len(of_cells))
            start = part.stop
            rows.add(
                "displacement",
                {
                    "doc": np.int32(doc),
                    **{name: np.repeat(np.array([columns[name] for columns in of_cells]), n) for name in KEYS},
                    "layer": np.tile(np.repeat(np.array(layers, np.int32), lengths[doc]), len(of_cells)),
                    "position": np.tile(np.arange(lengths[doc], dtype=np.int32), len(layers) * len(of_cells)),
                    **{name: found[name][part] for name in ("norm", "displacement")},
                },
            )
