"""The stage `scalogram`: at which scales along the causal lag does attention vary (methods.md §4)?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tasks.kernels.lag_field import lag_signals
from tasks.kernels.published_pod import PublishedEnergy, published_dominant
from tasks.kernels.wavelet import MorletBank, RowEnergy, default_scales, dominant, shares
from tasks.stages.multiscale.ensemble import Ensemble, Share, combine_survey, one_blas_thread, survey

if TYPE_CHECKING:
    from storage.tensors import ActivationStore, ShardReader
    from tasks.stages.contract import Partial, Rows, StageContext
    from tasks.stages.multiscale.declaration import ScalogramParameters

__all__ = ["combine_survey", "per_shard", "survey"]

LAG_BANDS = (0, 1, 8, 20)
"""Where the bands of lags begin: the query itself, up to 7, up to 19, and the rest; those inside the window."""


def per_shard(
    store: ActivationStore, shard: ShardReader, parameters: ScalogramParameters, context: StageContext, rows: Rows
) -> tuple[Partial, dict[str, int]]:
    """Rows of this shard's share of the layers, each over all documents."""
    assert context.survey is not None  # the stage surveys
    one_blas_thread()
    ensemble, share = Ensemble.of(store, context.survey), Share.of(store, shard, context)
    heads = [None, *(range(store.shape.n_heads) if parameters.per_head else ())]
    jobs = [(layer, head) for layer in share.layers for head in heads]
    for at, (layer, head) in enumerate(jobs):
        found = LayerEnergy(ensemble.n_tokens, parameters)
        for seen, field in enumerate(ensemble.fields(layer, head), 1):
            found.add(field)
            share.done((at + seen / len(ensemble)) / len(jobs))
        found.write(layer, head, rows)
    share.done(1)
    left_out = {"documents_of_other_lengths": ensemble.left_out} if shard.index == 0 else {}
    return {}, left_out


class LayerEnergy:
    """Energies by scale of one layer, summed over its fields as they come."""

    def __init__(self, n_tokens: int, parameters: ScalogramParameters) -> None:
        self._parameters = parameters
        self.scales = np.asarray(parameters.scales) if parameters.scales else default_scales(n_tokens)
        self.energy = RowEnergy(MorletBank(n_tokens, self.scales, parameters.omega0))
        self.published = PublishedEnergy(n_tokens, self.scales, parameters.omega0)
        self._bands = tuple(lag for lag in LAG_BANDS if lag < n_tokens)
        self._sum, self._published_sum, self._mass = (
            np.zeros(len(self.scales)),
            np.zeros(len(self.scales)),
            np.zeros(len(self._bands)),
        )
        self._mean, self._squares, self._n = np.zeros((n_tokens, n_tokens)), np.zeros((n_tokens, n_tokens)), 0

    def add(self, field: np.ndarray) -> None:
        """One field (T, T)."""
        signals, n_tokens = lag_signals(field), len(field)
        if "exact" in self._parameters.protocols:
            self._sum += self.energy.of_signals(signals)
        if "published" in self._parameters.protocols:
            self._published_sum += self.published.of_diagonal(np.diagonal(field).copy())
        self._n += 1
        step = signals - self._mean  # Welford's mean and sum of squares
        self._mean += step / self._n
        self._squares += step * (signals - self._mean)
        self._mass += np.add.reduceat(signals[-(-n_tokens // 4) :].mean(0), self._bands)

    @property
    def observed(self) -> np.ndarray:
        """The mean energy of a field at each scale."""
        return self._sum / self._n

    @property
    def published_observed(self) -> np.ndarray:
        """The same by the published protocol."""
        return self._published_sum / self._n

    @property
    def shuffled(self) -> np.ndarray:
        """The same of an ensemble whose documents are permuted at each entry by itself, the mean over permutations.

        Every entry keeps its mean and variance over documents, and no two vary together: so the energy is that of the
        mean field, and of noise of that variance.
        """
        return self.energy.of_signals(self._mean) + self.energy.of_noise(self._squares / self._n)

    def write(self, layer: int, head: int | None, rows: Rows) -> None:
        """Rows of the tables scalogram and lag_mass."""
        n_tokens = len(self._mean)
        uniform = np.tril(np.ones((n_tokens, n_tokens)) / np.arange(1, n_tokens + 1)[:, None])
        if "exact" in self._parameters.protocols:
            for name, energy in (
                ("observed", self.observed),
                ("uniform", self.energy.of_signals(lag_signals(uniform))),
                ("doc_shuffle", self.shuffled),
            ):
                self._write(layer, head, "exact", name, energy, dominant(energy), rows)
        if "published" in self._parameters.protocols:
            flat = self.published.of_diagonal(np.diagonal(uniform).copy())
            for name, energy in (("observed", self.published_observed), ("uniform", flat)):
                self._write(layer, head, "published", name, energy, published_dominant(energy), rows)
        highest = [*(lag - 1 for lag in self._bands[1:]), n_tokens - 1]
        of_layer = {"layer": layer, "head": head_column(head, len(self._bands))}
        bands = {"lag_lo": np.asarray(self._bands, np.int32), "lag_hi": np.asarray(highest, np.int32)}
        rows.add("lag_mass", {**of_layer, **bands, "mass": self._mass / self._n})

    def _write(
        self,
        layer: int,
        head: int | None,
        protocol: str,
        field: str,
        energy: np.ndarray,
        chosen: np.ndarray,
        rows: Rows,
    ) -> None:
        rows.add(
            "scalogram",
            {
                "layer": layer,
                "head": head_column(head, len(self.scales)),
                "protocol": protocol,
                "omega0": self._parameters.omega0,
                "field": field,
                "scale": self.scales,
                "energy": energy,
                "energy_share": shares(energy),
                "dominant": chosen,
            },
        )


def head_column(head: int | None, n: int) -> pa.Array:
    """A head's number in n rows; NULL for the mean of all heads."""
    return pa.nulls(n, pa.int32()) if head is None else pa.array(np.full(n, head, np.int32))
