"""The stage `propagation`: how far from the clean run a perturbed one comes to lie, layer by layer (methods.md §3).

‖h′_l − h_l‖ of what leaves every layer from the first perturbed one on; h_l is what the store holds of the clean run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.models.observation import Observables, Observed
from tasks.stages.perturbation.grid import KEYS, Cell, set_name
from tasks.stages.perturbation.norm_survey import combine_survey, medians, survey
from tasks.stages.replays import losses, pieces, replay_of

if TYPE_CHECKING:
    from torch import Tensor

    from storage.tensors import ActivationStore, ShardReader
    from tasks.stages.contract import Partial, Rows, StageContext
    from tasks.stages.perturbation.declaration import PropagationParameters

__all__ = ["combine_survey", "per_shard", "survey"]


def per_shard(
    store: ActivationStore, shard: ShardReader, parameters: PropagationParameters, context: StageContext, rows: Rows
) -> tuple[Partial, dict[str, int]]:
    """Rows per document, cell and layer of one shard."""
    n_layers = store.shape.n_layers
    cells, of_layer = list(parameters.cells(n_layers)), medians(context.survey)
    pairs = len(store.shape.kept_layers) / len(cells)
    for layers, of_set in groupby(cells, key=lambda cell: cell.layers):
        together, first = list(of_set), layers[0]
        conditions = [cell.condition(of_layer, context.seed) for cell in together]
        for documents in pieces(shard, len(together), replay_of(context).batch_tokens):
            distances = _Distances(documents, len(together), first, n_layers)
            observables = Observables(clean=_Clean(shard, documents).leaves)
            name = f"{set_name(layers)}-{documents[0]}"
            found = losses(
                context,
                name,
                first + 1,
                conditions,
                documents,
                pairs,
                distances.arrays,
                observables=observables,
                see=distances.see,
            )
            rows.add("propagation", _columns(found, together, shard, documents, n_layers))
    return {}, {}


@dataclass
class _Clean:
    """The clean run's residual stream of some documents, one layer of it at a time."""

    shard: ShardReader
    documents: Sequence[int]
    layer: int = -1
    held: dict[int, Tensor] = field(default_factory=dict)

    def leaves(self, document: int, layer: int) -> Tensor:
        """(T, D)."""
        if layer != self.layer:
            self.held = {}
            for one in self.shard.layer(layer + 1, ("residual",), set(self.documents)):
                assert one.residual is not None  # the stage asks for it
                self.held[one.doc] = one.residual
            self.layer = layer
        return self.held[document]


class _Distances:
    """(documents, cells, layers from the first perturbed one on): the mean over tokens, and the first token's."""

    def __init__(self, documents: Sequence[int], n_cells: int, first: int, n_layers: int) -> None:
        self._documents, self._layers = documents, range(first, n_layers)
        shape = len(documents), n_cells, len(self._layers)
        self._mean, self._first_token = np.full(shape, np.nan), np.full(shape, np.nan)

    def see(self, document: int, condition: int, seen: Observed) -> None:
        """One document under one condition."""
        at = self._documents.index(document), condition
        self._mean[at] = [seen.distances[layer].mean() for layer in self._layers]
        self._first_token[at] = [seen.distances[layer][0] for layer in self._layers]

    def arrays(self) -> Partial:
        return {"distance_mean": self._mean, "distance_first_token": self._first_token}


def _columns(
    found: Partial, cells: Sequence[Cell], shard: ShardReader, documents: Sequence[int], n_layers: int
) -> dict[str, Any]:
    """Rows of every document, cell and layer, raveled."""
    _, n_cells, n_after = found["distance_mean"].shape
    lengths, of_cells = dict(zip(shard.documents, shard.lengths, strict=True)), [c.columns(n_layers) for c in cells]
    named = {name: np.repeat(np.array([columns[name] for columns in of_cells]), n_after) for name in KEYS}
    layers = np.arange(n_layers - n_after, n_layers, dtype=np.int32)
    return {
        "doc": np.repeat(np.array(documents, np.int32), n_cells * n_after),
        **{name: np.tile(values, len(documents)) for name, values in named.items()},
        "layer": np.tile(layers, len(documents) * n_cells),
        "distance_mean": found["distance_mean"].ravel(),
        "distance_first_token": found["distance_first_token"].ravel(),
        "n_tokens": np.repeat(np.array([lengths[doc] for doc in documents], np.int32), n_cells * n_after),
    }
