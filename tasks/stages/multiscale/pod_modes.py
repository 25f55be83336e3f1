"""Reading the whole modes that the stage `pod` keeps beside its parts, with the documents' coefficients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from storage.errors import MissingPart, UsageError
from storage.layout import SURVEY, shard_part
from tasks.capture.folder import CaptureFolder
from tasks.kernels.lag_field import LagField
from tasks.run_record import StageRun
from tasks.stages.parts import read_partial
from tasks.stages.registry import stage
from tasks.stages.requirements import open_store

FULL = "full"


@dataclass(frozen=True)
class PodModes:
    """Modes of one layer's ensemble, largest eigenvalue first."""

    modes: np.ndarray
    """(K, T, T) float64, 0 where nothing is seen; of length 1, orthogonal to float32's rounding."""
    coefficients: np.ndarray
    """(K, N) float64: each document's fluctuation along each mode; the mean square of row k is λ_k."""
    documents: np.ndarray
    """(N,) int32: the documents, in the order of the coefficients."""


def read_modes(runs: str, capture: str, layer: int, *, head: int | None = None, scale: float | None = None) -> PodModes:
    """Of the run of `pod` that was asked for last: the unfiltered field's, or the exact filter's next to `scale`.

    Raises MissingPart where the stage is not done, UsageError for a layer, head or scale that it does not have.
    """
    prepared = CaptureFolder.open(runs, capture)
    asked = [run for run in prepared.manifest.stage_runs() if run["stage"] == "pod"]
    if not asked:
        raise MissingPart("a run of the stage pod", got="none", where=f"capture {capture}", remedy="Run it first.")
    run = StageRun.read(prepared, "pod", max(asked, key=lambda record: record["requested_at"])["key"])
    shape = open_store(prepared, stage("pod")).shape
    if layer not in shape.kept_layers:
        raise UsageError("a layer that the store keeps", got=str(layer), where=f"capture {capture}")
    part = shard_part(shape.kept_layers.index(layer) % prepared.n_shards)
    arrays, found = read_partial(prepared, run, part), read_partial(prepared, run, SURVEY)
    place = f"layer-{layer}" if head is None else f"layer-{layer}-head-{head}"
    name = f"{place}/{FULL if scale is None else _nearest(arrays.get(f'{place}/scales/exact'), scale)}"
    if f"{name}/mode" not in arrays:
        raise UsageError(
            "a head, or a scale, of which modes were kept", got=name, where=f"capture {capture}, stage pod"
        )
    n_tokens = int(found["n_tokens"].max())
    lags = LagField(n_tokens, shape.windows[layer])
    documents = found["doc"][found["n_tokens"] == n_tokens]
    return PodModes(lags.unpack(arrays[f"{name}/mode"].astype(np.float64)), arrays[f"{name}/coefficient"], documents)


def _nearest(scales: np.ndarray | None, scale: float) -> str:
    """The filter next to a scale; a name of none where there are no filters."""
    if scales is None or not len(scales):
        return "exact-none"
    return f"exact-{int(np.abs(np.log(scales / scale)).argmin())}"
