-- grain: one row per (capture, layer, head, bin)
-- Output norm over equal bins of the sink rate.
select
    capture,                                            -- the capture's id
    stage_key,                                          -- key of the stage run that wrote the row, 64 hex digits
    layer,                                              -- layer, counted from 0
    head,                                               -- query head, counted from 0
    bin,                                                -- bin of the sink rate, counted from 0
    n,                                                  -- number of query rows in the bin
    nan_to_null(sink_rate) as sink_rate,                -- mean sink rate in the bin, 0 … 1; NULL in an empty bin
    nan_to_null(output_norm_mean) as output_norm_mean,  -- mean ‖o‖ in the bin; NULL in an empty bin
    nan_to_null(output_norm_sd) as output_norm_sd       -- standard deviation of ‖o‖ in the bin; NULL with fewer than two rows
from parts
