"""The stage `sink`: how the loss changes when every head's sink value ṽ_0 is zeroed and α stays (methods.md §1).

Zeroed in one layer at a time, the model running again from that layer, and in all layers at once. What a sink's value
does to the geometry of the outputs is in `contributions` (sink_geometry, semantic_cone).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tasks.models.interventions import DropKeys
from tasks.stages.replays import clean_losses, label, losses

if TYPE_CHECKING:
    from storage.tensors import ActivationStore, ShardReader
    from tasks.stages.contract import Partial, Rows, StageContext
    from tasks.stages.faithfulness.declaration import SinkParameters


_SINK = (0,)


def per_shard(
    store: ActivationStore, shard: ShardReader, parameters: SinkParameters, context: StageContext, rows: Rows
) -> tuple[Partial, dict[str, int]]:
    """Rows per document of one shard: each layer that the store keeps alone, then all of them."""
    layers = store.shape.kept_layers
    sets = [*((layer,) for layer in layers), *([layers] if len(layers) > 1 else [])]
    for together in sets:
        named = label(together, store.shape)
        condition = tuple(DropKeys(layer, _SINK) for layer in together)
        pairs = len(layers) / len(sets)
        sums = losses(context, f"layers-{named}", together[0], [condition], shard.documents, pairs)
        rows.add(
            "sink_removal",
            {
                "doc": np.array(shard.documents, np.int32),
                "layers": named,
                "nll_sum": sums["nll_sum"][:, 0],
                **clean_losses(shard, shard.documents),
            },
        )
    return {}, {}
