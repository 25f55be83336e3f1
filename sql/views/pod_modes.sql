-- grain: one row per (capture, layer, head, protocol, filter_scale, mode, lag)
-- The first modes of the observed ensemble along the lag; whole modes and coefficients lie beside the stage's partials.
select
    capture,                                    -- the capture's id
    stage_key,                                  -- key of the stage run that wrote the row, 64 hex digits
    layer,                                      -- layer, counted from 0
    head,                                       -- query head, counted from 0; NULL for the mean of all heads
    protocol,                                   -- exact, or published: the printed protocol
    nan_to_null(filter_scale) as filter_scale,  -- scale a* of the filter along the lag, in lags; NULL for the unfiltered field
    mode,                                       -- number k of the mode, counted from 1
    lag,                                        -- lag i − j, counted from 0
    nan_to_null(profile) as profile             -- mean over queries of the mode at this lag; the mode has length 1 over all entries, its largest one above 0
from parts
