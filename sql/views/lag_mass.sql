-- grain: one row per (capture, layer, head, lag_lo, lag_hi)
-- Attention mass by how far back it looks, over the rows of the scalogram.
select
    capture,                   -- the capture's id
    stage_key,                 -- key of the stage run that wrote the row, 64 hex digits
    layer,                     -- layer, counted from 0
    head,                      -- query head, counted from 0; NULL for the mean of all heads
    lag_lo,                    -- smallest lag i − j of the band
    lag_hi,                    -- largest lag of the band
    nan_to_null(mass) as mass  -- Σ α over the band, mean over rows i ≥ T/4 and documents; the bands of a layer sum to 1 less the learned-sink mass
from parts
