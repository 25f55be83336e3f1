"""The stage `pod`: how many modes do attention fields vary along, and how many would noise (methods.md §4)?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial as bind
from typing import TYPE_CHECKING

import numpy as np

from tasks.kernels.pod_fields import scale_filter, significant
from tasks.kernels.published_pod import published_dominant, published_filter
from tasks.kernels.wavelet import default_scales, dominant
from tasks.stages.multiscale.declaration import LEAST_SNAPSHOTS, ScalogramParameters
from tasks.stages.multiscale.ensemble import Ensemble, Share, combine_survey, one_blas_thread, survey
from tasks.stages.multiscale.pod_blocks import NULLS, Blocks, Source
from tasks.stages.multiscale.pod_rows import FULL, PodRows
from tasks.stages.multiscale.pod_spectra import OBSERVED_SOURCE, Arrays, Spectra
from tasks.stages.multiscale.scalogram import LayerEnergy

if TYPE_CHECKING:
    from storage.tensors import ActivationStore, ShardReader
    from tasks.stages.contract import Partial, Rows, StageContext
    from tasks.stages.multiscale.declaration import PodParameters

__all__ = ["combine_survey", "per_shard", "survey"]

Filters = dict[str, np.ndarray | None]

PUBLISHED_SNAPSHOTS = 150
"""N of the published figures."""


def per_shard(
    store: ActivationStore, shard: ShardReader, parameters: PodParameters, context: StageContext, rows: Rows
) -> tuple[Partial, dict[str, int]]:
    """Rows of this shard's share of the layers, over all documents; modes and coefficients as the part's arrays."""
    assert context.survey is not None  # the stage surveys
    one_blas_thread()
    ensemble, share = Ensemble.of(store, context.survey), Share.of(store, shard, context)
    sizes = ensemble_sizes(len(ensemble), parameters.n_snapshots)
    writer = PodRows(rows, parameters, sizes, ensemble.n_tokens)
    heads = [None, *(range(store.shape.n_heads) if parameters.per_head else ())]
    jobs, kept = [(layer, head) for layer in share.layers for head in heads], Arrays()
    for at, (layer, head) in enumerate(jobs):
        place = f"layer-{layer}" if head is None else f"layer-{layer}-head-{head}"
        blocks = Blocks(ensemble, layer, head, context.seed)
        step = _Step(share, at, len(jobs))
        work = LayerPod(blocks, sizes, parameters, context.seed)
        arrays = context.once(place, bind(work.run, step.done))
        writer.write(layer, head, arrays, blocks.lags)
        kept |= {
            f"{place}/{name}": x for name, x in arrays.items() if name.endswith(("/mode", "/coefficient", "/exact"))
        }
        step.done(1)
    share.done(1)
    quality = {"constant_ensembles": writer.n_constant}
    if shard.index == 0:
        quality["documents_of_other_lengths"] = ensemble.left_out
    return kept, quality


class _Step:
    """One of a shard's jobs, and its share of the progress."""

    def __init__(self, share: Share, at: int, of: int) -> None:
        self._share, self._at, self._of = share, at, of

    def done(self, part: float) -> None:
        self._share.done((self._at + part) / self._of)


def ensemble_sizes(n: int, asked: Sequence[int]) -> tuple[int, ...]:
    """Sizes of ensembles of n documents, ascending, n last: those asked for; else n/8, n/4, n/2, and 150."""
    sizes = {*asked} if asked else {n // 8, n // 4, n // 2, PUBLISHED_SNAPSHOTS}
    return tuple(sorted({*(size for size in sizes if LEAST_SNAPSHOTS <= size < n), n}))


class LayerPod:
    """One layer, or one head of it: its scales, and then its spectra."""

    def __init__(self, blocks: Blocks, sizes: Sequence[int], parameters: PodParameters, seed: int) -> None:
        self._blocks, self._parameters = blocks, parameters
        self._spectra = Spectra(blocks, sizes, parameters.modes, parameters.epsilons, seed)

    def run(self, done: Callable[[float], None]) -> Arrays:
        """`scales/exact` and `scales/published`: those of the filters; the rest as `Spectra.run` names it."""
        found = self._scales()
        lags = self._blocks.lags.lag
        filters: Filters = {FULL: None}
        published: Filters = {}
        if self._blocks.head is None:
            filters |= {f"exact-{at}": scale_filter(lags, a) for at, a in enumerate(found["scales/exact"])}
            for at, a in enumerate(found["scales/published"]):
                published[f"published-{at}"] = significant(published_filter(lags, a))
        nulls = [(field, draw) for field in NULLS for draw in range(self._parameters.draws)]
        work: dict[Source, Filters] = {OBSERVED_SOURCE: {**filters, **published}, **dict.fromkeys(nulls, filters)}
        return found | self._spectra.run(work, done)

    def _scales(self) -> Arrays:
        """The filters' scales by protocol; the one pass that gives the mean field gives the scalogram too."""
        parameters, n_tokens = self._parameters, self._blocks.ensemble.n_tokens
        filtered = self._blocks.head is None
        asked = np.asarray(parameters.scales, np.float64)
        protocols = parameters.protocols if filtered and not parameters.scales else ()
        energy = LayerEnergy(n_tokens, ScalogramParameters(protocols=protocols)) if protocols else None
        self._blocks.prepare(energy.add if energy else None)
        found = {f"scales/{p}": asked if filtered and p in parameters.protocols else asked[:0] for p in _BOTH}
        if energy is not None:
            scales = default_scales(n_tokens)
            if "exact" in protocols:
                found["scales/exact"] = scales[dominant(energy.observed)]
            if "published" in protocols:
                found["scales/published"] = scales[published_dominant(energy.published_observed)]
        return found


_BOTH = ("exact", "published")
