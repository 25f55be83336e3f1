"""The tables that a capture fills, and the table of stages, declared."""

from __future__ import annotations

from storage.tables import BIG, DOUBLE, FLAG, INT, REAL, TEXT, TableSpec, one_of, table

_DTYPES = ("float32", "float16", "bfloat16")

CAPTURES = table(
    "captures",
    {},
    name=TEXT,
    model=TEXT,
    model_digest=TEXT,
    family=TEXT,
    norm=one_of("layernorm", "rmsnorm"),
    n_layers=INT,
    n_heads=INT,
    n_kv_heads=INT,
    d_model=INT,
    d_value=INT,
    causal=FLAG,
    corpus=TEXT,
    corpus_digest=TEXT,
    tokenizer_digest=TEXT,
    bos_policy=one_of("auto", "always", "never"),
    window_tokens=INT,
    stride_tokens=INT,
    n_docs=INT,
    n_tokens=BIG,
    compute_dtype=one_of(*_DTYPES),
    attention_storage=one_of("stored", "rebuilt", "none"),
    value_dtype=one_of(*_DTYPES, "none"),
    device=TEXT,
    bytes=BIG,
    seconds=DOUBLE,
    tokens_per_second=DOUBLE,
    created_at=TEXT,
    versions=TEXT,
    config=TEXT,
)
DOCUMENT_ROWS = table(
    "documents", {"doc": INT}, source=TEXT, start_token=INT, digest=TEXT, n_tokens=INT, nll_sum=DOUBLE, n_predicted=INT
)
TOKENS = table("tokens", {"doc": INT, "position": INT}, token_id=INT, token=TEXT, nll=REAL)
HEADS = table("heads", {"layer": INT, "head": INT}, kv_head=INT, weight_norm_v=REAL, weight_norm_o=REAL)
STAGES = table(
    "stages",
    {"stage": TEXT, "key": TEXT},
    version=INT,
    status=one_of("done", "stale", "partial", "failed"),
    params=TEXT,
    shards_done=INT,
    shards_total=INT,
    rows=BIG,
    requested_at=TEXT,
    started_at=TEXT,
    finished_at=TEXT,
    quality=TEXT,
)

CAPTURE_TABLES: tuple[TableSpec, ...] = (CAPTURES, DOCUMENT_ROWS, TOKENS, HEADS)
