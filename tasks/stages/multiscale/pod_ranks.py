"""The effective rank of each layer's attention over documents, for stages that survey it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from storage.errors import IncompleteRun
from tasks.kernels.pod_measures import effective_rank
from tasks.stages.multiscale.ensemble import Ensemble, combine_survey, one_blas_thread, survey
from tasks.stages.multiscale.pod_blocks import Blocks
from tasks.stages.multiscale.pod_rows import FULL
from tasks.stages.multiscale.pod_spectra import OBSERVED_SOURCE, Spectra, name_of

if TYPE_CHECKING:
    from storage.tensors import ActivationStore, ShardReader
    from tasks.stages.contract import StageContext

EPSILON = 0.10
"""The share of the energy that may be left: the published figure's."""


def shard_ranks(store: ActivationStore, shard: ShardReader, context: StageContext) -> np.ndarray:
    """H*(0.10) (L,) of the mean over heads, in this shard's share of the layers, over all documents; 0 in the others.

    NaN where no field differs from the mean. Raises IncompleteRun where documents are not captured yet: a rank of some
    of them would be another.
    """
    if len(store.shards) < context.n_shards:
        raise IncompleteRun(
            f"all {context.n_shards} shards of the capture, for an effective rank of their documents",
            got=f"{len(store.shards)}",
            remedy="Run the same capture again to do the rest.",
        )
    one_blas_thread()
    quiet = type(context)(context.stage_key, context.seed)
    of_shards = [survey(store, store.shard(index), None, quiet) for index in store.shards]
    found = of_shards[0]
    for more in of_shards[1:]:
        found = combine_survey(found, more)
    ensemble, kept = Ensemble.of(store, found), store.shape.kept_layers
    ranks = np.zeros(len(kept))
    for at in range(shard.index, len(kept), len(store.shards)):
        blocks = Blocks(ensemble, kept[at], None, context.seed)
        blocks.prepare()
        spectra = Spectra(blocks, (len(ensemble),), 0, (), context.seed)
        arrays = spectra.run({OBSERVED_SOURCE: {FULL: None}}, lambda _done: None)
        rank = effective_rank(arrays[name_of(FULL, OBSERVED_SOURCE, len(ensemble))], EPSILON)
        ranks[at] = np.nan if rank is None else rank
    return ranks
