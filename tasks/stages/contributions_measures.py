"""What the stage `contributions` measures of one document and layer, as rows of its tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch

from tasks.kernels.cone import SemanticCone, semantic_cone
from tasks.kernels.contribution import Contributions, contributions
from tasks.kernels.drift import SemanticDrift, semantic_drift
from tasks.kernels.factors import factor_moments
from tasks.kernels.moments import Moments
from tasks.kernels.outputs import HeadOutputs, head_outputs
from tasks.kernels.sink import SinkGeometry, sink_geometry, tail_mass
from tasks.kernels.weights import LayerWeights

if TYPE_CHECKING:
    from storage.tensors import DocumentLayer

Columns = dict[str, Any]

_SCORES = ("raw", "vw", "vwon", "cw_intra", "cw_intra_abs", "cw_inter", "cw_inter_abs")
_EDGE_VALUES = ("alpha", "relative_norm", "cosine", "cw_intra", "cw_inter")
_SINK_VALUES = (
    "sink_rate", "output_norm", "sink_norm", "tail_norm", "cosine_sink_tail", "a_star", "min_norm"
)  # fmt: skip


@dataclass(frozen=True)
class Measures:
    """Everything that the kernels say of one document and layer."""

    doc: int
    outputs: HeadOutputs
    attention_sum: torch.Tensor
    """Σ_j α (H, T)."""
    weights: Contributions
    sink: SinkGeometry
    drift: SemanticDrift
    cone: SemanticCone
    factors: Moments
    factor_entries_left_out: int


def measure(document: DocumentLayer, weights: LayerWeights, window: int | None, edges: int) -> Measures:
    """Run the kernels over one document and layer. Rows see what was stored: attention that sums to less stays so."""
    attention, value = document.attention, document.value
    assert attention is not None and value is not None  # the stage asks for both
    outputs = head_outputs(attention, value, weights, window=window)
    tail = tail_mass(attention, window=window)
    rest = tail if document.sink_mass is None else tail + document.sink_mass.T
    factors, left_out = factor_moments(attention, outputs, window=window)
    return Measures(
        doc=document.doc,
        outputs=outputs,
        attention_sum=outputs.sink_rate + tail,
        weights=contributions(attention, outputs, edges=edges, window=window),
        sink=sink_geometry(outputs, weights, rest, window=window),
        drift=semantic_drift(attention, outputs, weights, window=window),
        cone=semantic_cone(outputs, weights),
        factors=factors,
        factor_entries_left_out=left_out,
    )


def rows_of(measures: Measures) -> Iterator[tuple[str, Columns]]:
    """The document's rows of every table that has rows per document, without the columns `layer` and `doc`."""
    yield "token_scores", _token_scores(measures.weights)
    yield "contribution_rows", _contribution_rows(measures)
    yield "contribution_edges", _contribution_edges(measures.weights)
    yield "sink_geometry", _sink_geometry(measures.sink)
    drift = measures.drift
    heads = np.arange(len(drift.norm), dtype=np.int32)
    n = np.full(len(heads), drift.n, np.int64)
    yield "semantic_drift", {"head": heads, "n": n, "drift_norm": drift.norm, "cosine_drift_sink": drift.cosine_sink}


def nan_counts(measures: Measures) -> Mapping[str, int]:
    """How many values are undefined, for the quality record."""
    rows, tokens, edges = measures.weights.rows, measures.weights.tokens, measures.weights.edges
    return {
        "nan_cw_intra_rows": _nans(rows.cw_intra),
        "nan_cw_inter_rows": _nans(rows.cw_inter),
        "nan_token_scores": _nans(tokens.cw_intra + tokens.cw_inter),
        "nan_edge_cosines": _nans(edges.cosine) - int((edges.key < 0).sum()),
        "nan_sink_tails": _nans(measures.sink.tail_norm),
        "nan_a_star_rows": _nans(measures.sink.a_star),
        "nan_drift_cosines": _nans(measures.drift.cosine_sink),
        "factor_entries_left_out": measures.factor_entries_left_out,
    }


def _nans(values: torch.Tensor) -> int:
    return int(values.isnan().sum())


def _key(shape: torch.Size, axis: int, first: int = 0) -> np.ndarray:
    """A key column of raveled (H, …) values: the index along one axis, counted from `first`."""
    index = np.arange(first, first + shape[axis], dtype=np.int32)
    index = index.reshape([-1 if a == axis else 1 for a in range(len(shape))])
    return np.broadcast_to(index, shape).reshape(-1)


def _token_scores(weights: Contributions) -> Columns:
    tokens = weights.tokens
    shape = torch.Size((*tokens.raw.shape, 2))  # (H, T−1, mean | sum)
    divisor = torch.stack((tokens.n_queries, torch.ones_like(tokens.n_queries)), -1)  # (T−1, 2)
    columns: Columns = {
        "head": _key(shape, 0),
        "position": _key(shape, 1),
        "reduce": pa.DictionaryArray.from_arrays(_key(shape, 2), ["mean", "sum"]),
        "n_queries": tokens.n_queries[None, :, None].expand(shape).reshape(-1).to(torch.int32),
    }
    for name in _SCORES:
        columns[name] = (getattr(tokens, name)[..., None] / divisor).reshape(-1)
    return columns


def _contribution_rows(measures: Measures) -> Columns:
    rows, outputs = measures.weights.rows, measures.outputs
    shape = outputs.norm.shape  # (H, T)
    values = {
        "sum_alpha": measures.attention_sum,
        "sum_cw_intra": rows.cw_intra,
        "sum_cw_inter": rows.cw_inter,
        "negative_share": rows.negative_share,
        "output_norm": outputs.norm,
        "layer_output_norm": outputs.layer_norm.expand(shape),
    }
    return {
        "head": _key(shape, 0),
        "query": _key(shape, 1),
        **{name: value.reshape(-1) for name, value in values.items()},
    }


def _contribution_edges(weights: Contributions) -> Columns:
    edges = weights.edges
    shape = edges.key.shape  # (H, T, k)
    there = np.flatnonzero(edges.key.numpy() >= 0)
    columns: Columns = {
        "head": _key(shape, 0)[there],
        "query": _key(shape, 1)[there],
        "key": edges.key.numpy().reshape(-1)[there].astype(np.int32),
        "rank": _key(shape, 2, first=1)[there],
    }
    for name in _EDGE_VALUES:
        columns[name] = getattr(edges, name).numpy().reshape(-1)[there]
    return columns


def _sink_geometry(sink: SinkGeometry) -> Columns:
    shape = sink.a_star.shape  # (H, n) for queries 1 … n
    columns: Columns = {"head": _key(shape, 0), "query": _key(shape, 1, first=1)}
    for name in _SINK_VALUES:
        columns[name] = getattr(sink, name).reshape(-1).numpy()
    a_star = columns["a_star"]
    columns["interior"] = pa.array((a_star > 0) & (a_star < 1), mask=np.isnan(a_star))
    return columns
