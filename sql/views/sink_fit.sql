-- grain: one row per (capture, layer, head)
-- Quadratic fit of the output norm on the sink rate.
select
    capture,                                    -- the capture's id
    stage_key,                                  -- key of the stage run that wrote the row, 64 hex digits
    layer,                                      -- layer, counted from 0
    head,                                       -- query head, counted from 0
    n,                                          -- number of query rows fitted
    nan_to_null(curvature) as curvature,        -- second derivative of the fitted ‖o‖ by the sink rate; positive is convex; NULL without a fit
    nan_to_null(curvature_lo) as curvature_lo,  -- lower end of its 95 % interval (bootstrap of documents); NULL with one document
    nan_to_null(curvature_hi) as curvature_hi,  -- upper end of its 95 % interval
    nan_to_null(a_min) as a_min,                -- sink rate of the fitted minimum, not bounded to 0 … 1; NULL where the curvature is not positive
    nan_to_null(r2) as r2                       -- R² of the fit, 0 … 1; NULL where the norm does not vary
from parts
