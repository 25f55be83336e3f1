"""The tables of the stage `contributions` (Cunningham & Muca Cirone 2026, arXiv 2606.07604), declared."""

from __future__ import annotations

from storage.tables import BIG, FLAG, INT, REAL, TableSpec, one_of, table

_ROW = {"doc": INT, "layer": INT, "head": INT, "query": INT}
_HEAD = {"layer": INT, "head": INT}

TOKEN_SCORES = table(
    "token_scores",
    {"doc": INT, "layer": INT, "head": INT, "position": INT, "reduce": one_of("mean", "sum")},
    n_queries=INT,
    raw=REAL,
    vw=REAL,
    vwon=REAL,
    cw_intra=REAL,
    cw_intra_abs=REAL,
    cw_inter=REAL,
    cw_inter_abs=REAL,
)
CONTRIBUTION_ROWS = table(
    "contribution_rows",
    _ROW,
    sum_alpha=REAL,
    sum_cw_intra=REAL,
    sum_cw_inter=REAL,
    negative_share=REAL,
    output_norm=REAL,
    layer_output_norm=REAL,
)
CONTRIBUTION_EDGES = table(
    "contribution_edges",
    {**_ROW, "key": INT},
    rank=INT,
    alpha=REAL,
    relative_norm=REAL,
    cosine=REAL,
    cw_intra=REAL,
    cw_inter=REAL,
)
CONTRIBUTION_FACTORS = table(
    "contribution_factors",
    {**_HEAD, "token_group": one_of("sink", "self", "tail")},
    n=BIG,
    share_alpha=REAL,
    share_norm=REAL,
    share_cosine=REAL,
    mean_alpha=REAL,
    mean_relative_norm=REAL,
    mean_cosine=REAL,
    mean_cw=REAL,
)
SINK_GEOMETRY = table(
    "sink_geometry",
    _ROW,
    sink_rate=REAL,
    output_norm=REAL,
    sink_norm=REAL,
    tail_norm=REAL,
    cosine_sink_tail=REAL,
    a_star=REAL,
    min_norm=REAL,
    interior=FLAG,
)
SINK_CURVE = table(
    "sink_curve", {**_HEAD, "bin": INT}, n=BIG, sink_rate=REAL, output_norm_mean=REAL, output_norm_sd=REAL
)
SINK_FIT = table("sink_fit", _HEAD, n=BIG, curvature=REAL, curvature_lo=REAL, curvature_hi=REAL, a_min=REAL, r2=REAL)
SEMANTIC_DRIFT = table("semantic_drift", {"doc": INT, **_HEAD}, n=BIG, drift_norm=REAL, cosine_drift_sink=REAL)
SEMANTIC_CONE = table(
    "semantic_cone",
    {**_HEAD, "row_group": one_of("low_norm", "rest"), "sink": one_of("kept", "zeroed")},
    n=BIG,
    mean_pairwise_cosine=REAL,
)

CONTRIBUTIONS_TABLES: tuple[TableSpec, ...] = (
    TOKEN_SCORES,
    CONTRIBUTION_ROWS,
    CONTRIBUTION_EDGES,
    CONTRIBUTION_FACTORS,
    SINK_GEOMETRY,
    SINK_CURVE,
    SINK_FIT,
    SEMANTIC_DRIFT,
    SEMANTIC_CONE,
)
