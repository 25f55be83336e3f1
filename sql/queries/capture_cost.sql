-- grain: one row per (capture)
-- What did a capture cost? Time, bytes on disk, and both per token.
-- $capture varchar = null: a capture's id; null takes every capture
select
    capture,
    model,
    corpus,
    device,
    compute_dtype,
    value_dtype as store_dtype,
    window_tokens,
    n_docs,
    n_tokens,
    seconds,
    tokens_per_second,
    bytes,
    bytes / n_tokens as bytes_per_token
from captures
where $capture::varchar is null or capture = $capture
order by capture
