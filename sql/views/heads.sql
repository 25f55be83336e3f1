-- grain: one row per (capture, layer, head)
-- A query head and the size of its weights.
select
    capture,                                      -- the capture's id
    stage_key,                                    -- key of the stage run that wrote the row, 64 hex digits
    layer,                                        -- layer, counted from 0
    head,                                         -- query head, counted from 0
    kv_head,                                      -- key/value head g that the query head reads
    nan_to_null(weight_norm_v) as weight_norm_v,  -- Frobenius norm of the head's value weights W_V
    nan_to_null(weight_norm_o) as weight_norm_o   -- Frobenius norm of the head's slice of the output projection W_O
from parts
