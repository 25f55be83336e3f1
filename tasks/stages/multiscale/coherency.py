"""The stage `coherency`: do query rows fluctuate together over documents, more than permuted documents would (§4)?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from storage.keys import seed_for
from tasks.kernels.coherency import coherency, queries, row_wavelet, shuffled
from tasks.kernels.wavelet import cone, default_scales, dominant
from tasks.stages.multiscale.declaration import ScalogramParameters
from tasks.stages.multiscale.ensemble import Ensemble, Share, combine_survey, one_blas_thread, survey
from tasks.stages.multiscale.pod_blocks import OBSERVED, Blocks
from tasks.stages.multiscale.scalogram import LayerEnergy

if TYPE_CHECKING:
    from storage.tensors import ActivationStore, ShardReader
    from tasks.stages.contract import Partial, Rows, StageContext
    from tasks.stages.multiscale.declaration import CoherencyParameters

__all__ = ["combine_survey", "per_shard", "survey"]


def per_shard(
    store: ActivationStore, shard: ShardReader, parameters: CoherencyParameters, context: StageContext, rows: Rows
) -> tuple[Partial, dict[str, int]]:
    """Rows of this shard's share of the layers, each over all documents."""
    assert context.survey is not None  # the stage surveys
    one_blas_thread()
    ensemble, share = Ensemble.of(store, context.survey), Share.of(store, shard, context)
    undefined = 0
    for at, layer in enumerate(share.layers):
        blocks = Blocks(ensemble, layer, None, context.seed)
        scales = _prepared(blocks, parameters)
        share.done((at + 0.5) / len(share.layers))
        chosen = [(float(a), queries(ensemble.n_tokens, a, parameters.queries)) for a in scales]
        waves = _waves(blocks, chosen, parameters.omega0)
        for (scale, asked), of_scale in zip(chosen, waves, strict=True):
            undefined += _write(layer, scale, asked, of_scale, parameters.draws, context.seed, rows)
        share.done((at + 1) / len(share.layers))
    share.done(1)
    quality = {"undefined_pairs": undefined}
    if shard.index == 0:
        quality["documents_of_other_lengths"] = ensemble.left_out
    return {}, quality


def _prepared(blocks: Blocks, parameters: CoherencyParameters) -> np.ndarray:
    """The scales, once the mean field is known: those asked for, or the dominant ones of the layer's scalogram."""
    n_tokens = blocks.ensemble.n_tokens
    if parameters.scales:
        blocks.prepare()
        return np.asarray(parameters.scales)
    energy = LayerEnergy(n_tokens, ScalogramParameters(omega0=parameters.omega0, protocols=("exact",)))
    blocks.prepare(energy.add)
    return default_scales(n_tokens)[dominant(energy.observed)]


def _waves(blocks: Blocks, chosen: list[tuple[float, np.ndarray]], omega0: float) -> list[np.ndarray]:
    """By scale, W (N, R) of the fluctuations' rows; every block is met once."""
    found = [np.empty((len(blocks.ensemble), len(asked)), np.complex128) for _, asked in chosen]
    starts, lags = blocks.lags.starts, blocks.lags.lag
    for at, part in enumerate(blocks.slices()):
        block = blocks.get((OBSERVED, 0), at)
        for (scale, asked), waves in zip(chosen, found, strict=True):
            for column, query in enumerate(asked):
                entries = slice(starts[query], starts[query + 1])
                waves[part, column] = block[:, entries] @ row_wavelet(lags[entries], scale, omega0)
    return found


def _write(layer: int, scale: float, asked: np.ndarray, waves: np.ndarray, draws: int, seed: int, rows: Rows) -> int:
    """Rows of one scale, each pair i ≤ j once; how many of them are undefined."""
    gamma, null = coherency(waves, waves), np.zeros((len(asked), len(asked)))
    for draw in range(draws):
        random = np.random.Generator(np.random.Philox(seed_for(seed, "coherency", layer, scale, draw)))
        null += coherency(shuffled(waves, random), waves) / draws
    i, j = np.triu_indices(len(asked))
    columns: dict[str, np.ndarray] = {"query_i": asked[i].astype(np.int32), "query_j": asked[j].astype(np.int32)}
    columns |= {"gamma": gamma[i, j], "gamma_null": null[i, j]}
    rows.add("coherency", {"layer": layer, "scale": np.float32(scale), "lag": cone(scale), **columns})
    return int(np.isnan(gamma[i, j]).sum())
