-- grain: one row per (capture, doc, layer, head)
-- What many weakly attended tokens add up to, beside the sink.
select
    capture,                                             -- the capture's id
    stage_key,                                           -- key of the stage run that wrote the row, 64 hex digits
    doc,                                                 -- document, counted from 0 in corpus order
    layer,                                               -- layer, counted from 0
    head,                                                -- query head, counted from 0
    n,                                                   -- number of query rows
    nan_to_null(drift_norm) as drift_norm,               -- mean norm of Σ α ṽ over keys j ≥ 1 with α < 1/(i + 1); of an encoder α < 1/T
    nan_to_null(cosine_drift_sink) as cosine_drift_sink  -- mean cosine of that sum with the projected value of key 0; NULL where nothing drifts
from parts
