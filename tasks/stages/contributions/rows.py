"""What the stage `contributions` measured of one document and layer, as rows of its tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch

if TYPE_CHECKING:
    from tasks.kernels.contribution import Contributions
    from tasks.kernels.outputs import HeadOutputs
    from tasks.kernels.sink import SinkGeometry
    from tasks.stages.contributions.measures import Measures

Columns = dict[str, Any]

_SCORES = ("raw", "vw", "vwon", "cw_intra", "cw_intra_abs", "cw_inter", "cw_inter_abs")
_EDGE_VALUES = ("alpha", "relative_norm", "cosine", "cw_intra", "cw_inter")
_SINK_VALUES = (
    "sink_rate", "output_norm", "sink_norm", "tail_norm", "cosine_sink_tail", "a_star", "min_norm"
)  # fmt: skip


def rows_of(measures: Measures) -> Iterator[tuple[str, Columns]]:
    """The document's rows of every table that has rows per document, without the columns `layer` and `doc`."""
    yield "token_scores", token_score_rows(measures.weights)
    yield "contribution_rows", row_sum_rows(measures.weights, measures.outputs, measures.attention_sum)
    yield "contribution_edges", edge_rows(measures.weights)
    yield "sink_geometry", sink_rows(measures.sink)
    drift = measures.drift
    heads = np.arange(len(drift.norm), dtype=np.int32)
    n = np.full(len(heads), drift.n, np.int64)
    yield "semantic_drift", {"head": heads, "n": n, "drift_norm": drift.norm, "cosine_drift_sink": drift.cosine_sink}


def _key(shape: torch.Size, axis: int, first: int = 0) -> np.ndarray:
    """A key column of raveled (H, …) values: the index along one axis, counted from `first`."""
    index = np.arange(first, first + shape[axis], dtype=np.int32)
    index = index.reshape([-1 if a == axis else 1 for a in range(len(shape))])
    return np.broadcast_to(index, shape).reshape(-1)


def token_score_rows(weights: Contributions) -> Columns:
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


def row_sum_rows(weights: Contributions, outputs: HeadOutputs, attention_sum: torch.Tensor) -> Columns:
    rows = weights.rows
    shape = outputs.norm.shape  # (H, T)
    values = {
        "sum_alpha": attention_sum,
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


def edge_rows(weights: Contributions) -> Columns:
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


def sink_rows(sink: SinkGeometry) -> Columns:
    shape = sink.a_star.shape  # (H, n) for queries 1 … n
    columns: Columns = {"head": _key(shape, 0), "query": _key(shape, 1, first=1)}
    for name in _SINK_VALUES:
        columns[name] = getattr(sink, name).reshape(-1).numpy()
    a_star = columns["a_star"]
    columns["interior"] = pa.array((a_star > 0) & (a_star < 1), mask=np.isnan(a_star))
    return columns
