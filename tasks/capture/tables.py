"""The tables that a capture fills, and the table of stages, declared."""

from __future__ import annotations

from storage.tables import BIG, DOUBLE, FLAG, INT, REAL, TEXT, TableSpec, table

CAPTURES = table(
    "captures",
    {},
    name=TEXT,
    model=TEXT,
    model_digest=TEXT,
    family=TEXT,
    norm=TEXT,
    n_layers=INT,
    n_heads=INT,
    n_kv_heads=INT,
    d_model=INT,
    d_value=INT,
    causal=FLAG,
    corpus=TEXT,
    corpus_digest=TEXT,
    tokenizer_digest=TEXT,
    bos_policy=TEXT,
    window_tokens=INT,
    stride_tokens=INT,
    n_docs=INT,
    n_tokens=BIG,
    compute_dtype=TEXT,
    attention_storage=TEXT,
    value_dtype=TEXT,
    device=TEXT,
    bytes=BIG,
    seconds=DOUBLE,
    tokens_per_second=DOUBLE,
    created_at=TEXT,
    versions=TEXT,
    config=TEXT,
)
DOCUMENTS = table(
    "documents", {"doc": INT}, source=TEXT, start_token=INT, digest=TEXT, n_tokens=INT, nll_sum=DOUBLE, n_predicted=INT
)
TOKENS = table("tokens", {"doc": INT, "position": INT}, token_id=INT, token=TEXT, nll=REAL)
HEADS = table("heads", {"layer": INT, "head": INT}, kv_head=INT, weight_norm_v=REAL, weight_norm_o=REAL)
STAGES = table(
    "stages",
    {"stage": TEXT, "key": TEXT},
    version=INT,
    status=TEXT,
    params=TEXT,
    shards_done=INT,
    shards_total=INT,
    rows=BIG,
    requested_at=TEXT,
    started_at=TEXT,
    finished_at=TEXT,
    quality=TEXT,
)

CAPTURE_TABLES: tuple[TableSpec, ...] = (CAPTURES, DOCUMENTS, TOKENS, HEADS)
