"""Made-up figures of a small capture whose tables are consistent: what the warehouse is tested on."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

Columns = dict[str, np.ndarray]

LAYERS, HEADS, KV_HEADS, TOKENS, DOCS, EDGES, WIDTH = 2, 4, 2, 6, 4, 3, 5
SCORES = ("raw", "vw", "vwon", "cw_intra", "cw_intra_abs", "cw_inter", "cw_inter_abs")


def attention_rows(doc: int, layer: int) -> tuple[np.ndarray, np.ndarray]:
    """Attention (H, T, T) and projected values (H, T, D), float64, the same at every call; keys 0 of length 0 never."""
    random = np.random.default_rng([doc, layer])
    logits = random.normal(size=(HEADS, TOKENS, TOKENS))
    logits[:, ~np.tril(np.ones((TOKENS, TOKENS), bool))] = -np.inf
    alpha = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    return alpha, random.normal(size=(HEADS, TOKENS, WIDTH))


def entries(doc: int, layer: int) -> dict[str, np.ndarray]:
    """Everything of one layer that the tables are made of, per (head, query, key) or (head, query)."""
    alpha, value = attention_rows(doc, layer)
    out = np.einsum("hij,hjd->hid", alpha, value)
    norm, layer_out = np.linalg.norm(out, axis=-1), out.sum(0)
    length = np.linalg.norm(value, axis=-1)
    inner = np.einsum("hid,hjd->hij", out, value)
    return {
        "alpha": alpha,
        "value": value,
        "length": length,
        "norm": norm,
        "layer_norm": np.linalg.norm(layer_out, axis=-1),
        "relative": length[:, None, :] / norm[..., None],
        "cosine": inner / (length[:, None, :] * norm[..., None]),
        "intra": alpha * inner / norm[..., None] ** 2,
        "inter": alpha * np.einsum("id,hjd->hij", layer_out, value) / (layer_out**2).sum(-1)[:, None],
    }


def _grid(*sizes: int) -> list[np.ndarray]:
    return [axis.ravel().astype(np.int32) for axis in np.indices(sizes)]


def row_columns(doc: int, layer: int) -> Columns:
    e = entries(doc, layer)
    head, query = _grid(HEADS, TOKENS)
    negative = -np.minimum(e["intra"], 0).sum(-1) / np.abs(e["intra"]).sum(-1)
    return {
        "head": head,
        "query": query,
        "sum_alpha": e["alpha"].sum(-1).ravel(),
        "sum_cw_intra": e["intra"].sum(-1).ravel(),
        "sum_cw_inter": e["inter"].sum(-1).ravel(),
        "negative_share": negative.ravel(),
        "output_norm": e["norm"].ravel(),
        "layer_output_norm": np.tile(e["layer_norm"], HEADS),
    }


def score_columns(doc: int, layer: int) -> Columns:
    e = entries(doc, layer)
    head, position, reduce = _grid(HEADS, TOKENS - 1, 2)
    n = (TOKENS - 1 - np.arange(TOKENS - 1)).astype(np.int32)
    vw = e["alpha"] * e["length"][:, None, :]
    per_entry = [e["alpha"], vw, vw / e["norm"][..., None]]
    for weights in (e["intra"], e["inter"]):
        per_entry += [weights, np.abs(weights)]
    columns: Columns = {"head": head, "position": position, "n_queries": np.tile(np.repeat(n, 2), HEADS)}
    columns["reduce"] = np.asarray(["mean", "sum"], dtype=object)[reduce]
    for name, scores in zip(SCORES, per_entry, strict=True):
        total = scores[:, :-1, :-1].sum(1)
        columns[name] = np.stack([total / n, total], -1).ravel()
    return columns


def edge_columns(doc: int, layer: int) -> Columns:
    e = entries(doc, layer)
    columns: dict[str, list[Any]] = {}
    for head in range(HEADS):
        for query in range(TOKENS):
            visible = np.abs(e["intra"][head, query, : query + 1])
            for rank, key in enumerate(np.argsort(-visible, kind="stable")[:EDGES], 1):
                at = (head, query, key)
                row = {"head": head, "query": query, "key": key, "rank": rank, "alpha": e["alpha"][at]}
                row |= {"relative_norm": e["relative"][at], "cosine": e["cosine"][at]}
                row |= {"cw_intra": e["intra"][at], "cw_inter": e["inter"][at]}
                for name, cell in row.items():
                    columns.setdefault(name, []).append(cell)
    return {name: np.asarray(cells) for name, cells in columns.items()}


def sink_columns(doc: int, layer: int) -> Columns:
    e = entries(doc, layer)
    head, query = _grid(HEADS, TOKENS - 1)
    a, s = e["alpha"][:, 1:, 0], e["value"][:, None, 0]
    weights = e["alpha"][:, 1:, 1:] / (1 - a)[..., None]
    m = np.einsum("hij,hjd->hid", weights, e["value"][:, 1:])
    ss, mm, sm = (s**2).sum(-1), (m**2).sum(-1), (s * m).sum(-1)
    dd = ss + mm - 2 * sm
    a_star = (mm - sm) / dd
    columns = {
        "sink_rate": a,
        "output_norm": e["norm"][:, 1:],
        "sink_norm": np.sqrt(np.broadcast_to(ss, a.shape)),
        "tail_norm": np.sqrt(mm),
        "cosine_sink_tail": sm / np.sqrt(ss * mm),
        "a_star": a_star,
        "min_norm": np.sqrt(np.maximum(0, ss * mm - sm**2) / dd),
        "interior": (a_star > 0) & (a_star < 1),
    }
    return {"head": head, "query": query + 1, **{name: column.ravel() for name, column in columns.items()}}


def drift_columns(doc: int, layer: int) -> Columns:
    random = np.random.default_rng([doc, layer, 1])
    n = np.full(HEADS, TOKENS - 1)
    cosine = random.uniform(-1, 1, HEADS)
    return {"head": np.arange(HEADS), "n": n, "drift_norm": random.random(HEADS), "cosine_drift_sink": cosine}


PER_LAYER: dict[str, Callable[[int, int], Columns]] = {
    "token_scores": score_columns,
    "contribution_rows": row_columns,
    "contribution_edges": edge_columns,
    "sink_geometry": sink_columns,
    "semantic_drift": drift_columns,
}


def whole_columns() -> dict[str, Columns]:
    """The tables over the whole capture, with figures that obey their identities."""
    random = np.random.default_rng(7)
    layer, head, group = _grid(LAYERS, HEADS, 3)
    shares = random.normal(size=(2, len(layer)))
    factors = {
        "layer": layer,
        "head": head,
        "token_group": np.asarray(["sink", "self", "tail"], dtype=object)[group],
        "n": np.full(len(layer), 20),
        "share_alpha": shares[0],
        "share_norm": shares[1],
        "share_cosine": 1 - shares.sum(0),
    }
    factors |= {f"mean_{name}": random.random(len(layer)) for name in ("alpha", "relative_norm", "cosine", "cw")}
    layer, head, bins = _grid(LAYERS, HEADS, 2)
    curve = {"layer": layer, "head": head, "bin": bins, "n": np.full(len(layer), 10)}
    curve |= {name: random.random(len(layer)) for name in ("sink_rate", "output_norm_mean", "output_norm_sd")}
    layer, head = _grid(LAYERS, HEADS)
    fit = {"layer": layer, "head": head, "n": np.full(len(layer), 20), "curvature": np.arange(len(layer)) - 1.0}
    fit |= {"curvature_lo": fit["curvature"] - 0.5, "curvature_hi": fit["curvature"] + 0.5}
    fit |= {"a_min": random.random(len(layer)), "r2": random.random(len(layer))}
    layer, head, rows, sink = _grid(LAYERS, HEADS, 2, 2)
    cone = {
        "layer": layer,
        "head": head,
        "row_group": np.asarray(["low_norm", "rest"], dtype=object)[rows],
        "sink": np.asarray(["kept", "zeroed"], dtype=object)[sink],
        "n": np.full(len(layer), 10),
        "mean_pairwise_cosine": random.uniform(-1, 1, len(layer)),
    }
    return {"contribution_factors": factors, "sink_curve": curve, "sink_fit": fit, "semantic_cone": cone}


def capture_columns(name: str, store_dtype: str) -> dict[str, Columns]:
    """The four tables of a capture."""
    random = np.random.default_rng(3)
    doc, position = _grid(DOCS, TOKENS)
    nll = random.random(len(doc)).astype(np.float32)
    nll[position == 0] = np.nan
    layer, head = _grid(LAYERS, HEADS)
    norms = random.random((2, len(layer)))
    return {
        "captures": {column: np.asarray([value]) for column, value in _capture_row(name, store_dtype).items()},
        "documents": {
            "doc": np.arange(DOCS),
            "source": np.asarray([f"text {d}" for d in range(DOCS)], dtype=object),
            "start_token": np.arange(DOCS) * TOKENS,
            "digest": np.asarray(["3" * 64] * DOCS, dtype=object),
            "n_tokens": np.full(DOCS, TOKENS),
            "nll_sum": np.nansum(nll.reshape(DOCS, TOKENS).astype(np.float64), axis=1),
            "n_predicted": np.full(DOCS, TOKENS - 1),
        },
        "tokens": {
            "doc": doc,
            "position": position,
            "token_id": position + 10,
            "token": np.asarray([f"t{p}" for p in position], dtype=object),
            "nll": nll,
        },
        "heads": {
            "layer": layer,
            "head": head,
            "kv_head": head // (HEADS // KV_HEADS),
            "weight_norm_v": norms[0],
            "weight_norm_o": norms[1],
        },
    }


def _capture_row(name: str, store_dtype: str) -> dict[str, Any]:
    sizes = {
        "n_layers": LAYERS,
        "n_heads": HEADS,
        "n_kv_heads": KV_HEADS,
        "d_model": WIDTH,
        "d_value": WIDTH,
        "window_tokens": TOKENS,
        "stride_tokens": TOKENS,
        "n_docs": DOCS,
        "n_tokens": DOCS * TOKENS,
    }
    cost = {"bytes": 4800, "seconds": 2.0, "tokens_per_second": DOCS * TOKENS / 2}
    store_dtypes = {"attention": store_dtype, "value": store_dtype}
    return {
        **sizes,
        **cost,
        "name": name,
        "model": "made-up",
        "model_digest": "0" * 64,
        "family": "gpt_neox",
        "norm": "layernorm",
        "causal": True,
        "corpus": "numbers",
        "corpus_digest": "1" * 64,
        "tokenizer_digest": "2" * 64,
        "bos_policy": "auto",
        "compute_dtype": "float32",
        "attention_storage": "stored",
        "value_dtype": store_dtype,
        "device": "cpu",
        "created_at": "2026-01-01T00:00:00+00:00",
        "versions": "{}",
        "config": json.dumps({"store_dtypes": store_dtypes}),
    }
