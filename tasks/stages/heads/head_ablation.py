"""The stage `head_ablation`: how the loss changes when one head alone writes nothing (methods.md §2, "Pruning").

Its z is zeroed, so what the other heads add to the residual stream is as it was; the model runs again from that layer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tasks.models.interventions import ScaleHeads
from tasks.stages.replays import clean_losses, losses

if TYPE_CHECKING:
    from storage.tensors import ActivationStore, ShardReader
    from tasks.stages.contract import Partial, Rows, StageContext
    from tasks.stages.heads.declaration import HeadAblationParameters


def per_shard(
    store: ActivationStore, shard: ShardReader, parameters: HeadAblationParameters, context: StageContext, rows: Rows
) -> tuple[Partial, dict[str, int]]:
    """Rows per document and head of one shard; the documents and heads of a layer run in batches."""
    heads, documents = range(store.shape.n_heads), shard.documents
    clean = {name: np.repeat(values, len(heads)) for name, values in clean_losses(shard, documents).items()}
    for layer in store.shape.kept_layers:
        conditions = [(ScaleHeads(layer, (head,), 0.0),) for head in heads]
        sums = losses(context, f"layer-{layer}", layer, conditions, documents, 1 / len(heads))
        rows.add(
            "head_ablation",
            {
                "doc": np.repeat(np.array(documents, np.int32), len(heads)),
                "layer": layer,
                "head": np.tile(np.array(heads, np.int32), len(documents)),
                "nll_sum": sums["nll_sum"].ravel(),
                **clean,
            },
        )
    return {}, {}
