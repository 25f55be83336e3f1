"""A layer's spectra as rows of the tables pod_spectrum, pod_summary and pod_modes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tasks.kernels.lag_field import LagField
from tasks.kernels.pod_measures import decay, effective_rank, saturated
from tasks.kernels.published_pod import published_beta
from tasks.stages.multiscale.pod_blocks import NULLS, OBSERVED, Source
from tasks.stages.multiscale.pod_spectra import OBSERVED_SOURCE, Arrays, name_of
from tasks.stages.multiscale.scalogram import head_column

if TYPE_CHECKING:
    from tasks.stages.contract import Rows
    from tasks.stages.multiscale.declaration import PodParameters

FULL = "full"
"""The unfiltered field, among a layer's filters."""


class PodRows:
    """Writes what `LayerPod.run` found."""

    def __init__(self, rows: Rows, parameters: PodParameters, sizes: Sequence[int], n_tokens: int) -> None:
        self._rows, self._parameters, self._sizes, self._n_tokens = rows, parameters, sizes, n_tokens
        self.n_constant = 0
        """Observed ensembles without energy: no field, or none of what a filter leaves, differs from the mean."""

    def write(self, layer: int, head: int | None, arrays: Arrays, lags: LagField) -> None:
        """All rows of one layer, or head."""
        for protocol, name, scale in self._filters(arrays):
            of_filter = {"layer": layer, "protocol": protocol, "filter_scale": np.float32(scale)}
            sources = [OBSERVED_SOURCE]
            if protocol == "exact":
                sources += [(field, draw) for field in NULLS for draw in range(self._parameters.draws)]
            for source in sources:
                self._spectrum(of_filter, head, arrays[name_of(name, source, self._sizes[-1])], source)
            self._summary(of_filter, head, arrays, name, sources)
            self._modes(of_filter, head, arrays[f"{name}/mode"], lags)

    def _filters(self, arrays: Arrays) -> Iterator[tuple[str, str, float]]:
        """(protocol, the filter's name among the arrays, its scale); NaN is the unfiltered field's."""
        for protocol in self._parameters.protocols:
            yield protocol, FULL, np.nan
            for at, scale in enumerate(arrays[f"scales/{protocol}"]):
                yield protocol, f"{protocol}-{at}", float(scale)

    def _spectrum(self, of_filter: dict[str, Any], head: int | None, values: np.ndarray, source: Source) -> None:
        n, total = len(values), values.sum()
        self.n_constant += source == OBSERVED_SOURCE and of_filter["protocol"] == "exact" and not total > 0
        shares = values / total if total > 0 else np.full(n, np.nan)
        columns = {"k": np.arange(1, n + 1, dtype=np.int32), "eigenvalue": values, "energy_share": shares}
        self._rows.add(
            "pod_spectrum",
            {
                **of_filter,
                "head": head_column(head, n),
                "field": source[0],
                "draw": source[1],
                **columns,
                "cumulative": np.minimum(np.cumsum(shares), 1.0),
            },
        )

    def _summary(
        self, of_filter: dict[str, Any], head: int | None, arrays: Arrays, name: str, sources: Sequence[Source]
    ) -> None:
        """A row per source, size and ε, in one row group."""
        found: list[dict[str, Any]] = []
        for source in sources:
            for size in self._sizes:
                values = arrays[name_of(name, source, size)]
                whole = source[0] == OBSERVED and size == self._sizes[-1]
                errors = arrays[f"{name}/errors"] if whole else np.full(len(self._parameters.epsilons), np.nan)
                found += self._measures(values, size, errors, of_filter["protocol"], source)
        self._rows.add(
            "pod_summary",
            {
                **of_filter,
                "head": head_column(head, len(found)),
                **{column: _column([row[column] for row in found]) for column in found[0]},
            },
        )

    def _measures(
        self, values: np.ndarray, size: int, errors: np.ndarray, protocol: str, source: Source
    ) -> Iterator[dict[str, Any]]:
        fit = decay(values)
        published = protocol == "published"
        beta = published_beta(fit.beta) if published else fit.beta
        t_spec = 1 / beta if published else fit.t_spec
        for epsilon, error in zip(self._parameters.epsilons, errors, strict=True):
            rank = effective_rank(values, epsilon)
            yield {
                "field": source[0],
                "draw": source[1],
                "n_snapshots": size,
                "epsilon": epsilon,
                "beta": beta,
                "beta_r2": fit.r2,
                "beta_se": fit.se,
                "t_spec": t_spec,
                "h_star": rank + 1 if rank is not None and published else rank,
                "saturated": rank is not None and saturated(rank, size),
                "total_energy": float(values.sum()),
                "reconstruction_error": float(error),
            }

    def _modes(self, of_filter: dict[str, Any], head: int | None, modes: np.ndarray, lags: LagField) -> None:
        for k, mode in enumerate(modes, 1):
            self._rows.add(
                "pod_modes",
                {
                    **of_filter,
                    "head": head_column(head, self._n_tokens),
                    "mode": k,
                    "lag": np.arange(self._n_tokens, dtype=np.int32),
                    "profile": lags.profile(mode.astype(np.float64)),
                },
            )


def _column(values: list[Any]) -> Any:
    """Whole numbers with None for what is not defined, words, flags, or floats."""
    kind = next((type(value) for value in values if value is not None), int)
    return pa.array(values, {int: pa.int32(), str: pa.string(), bool: pa.bool_()}.get(kind, pa.float64()))
