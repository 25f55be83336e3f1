-- grain: one row per (capture, layer, head, protocol, filter_scale, field, draw, k)
-- Eigenvalues of the covariance of attention fields over documents, largest first.
select
    capture,                                    -- the capture's id
    stage_key,                                  -- key of the stage run that wrote the row, 64 hex digits
    layer,                                      -- layer, counted from 0
    head,                                       -- query head, counted from 0; NULL for the mean of all heads
    protocol,                                   -- exact, or published: the printed protocol
    nan_to_null(filter_scale) as filter_scale,  -- scale a* of the filter along the lag, in lags; NULL for the unfiltered field
    field,                                      -- observed; lag_shuffle: fluctuations whose lags are permuted per row and snapshot; gaussian: noise of each entry's variance
    draw,                                       -- random draw of a null, counted from 0; 0 where nothing is drawn
    k,                                          -- number of the eigenvalue, counted from 1
    nan_to_null(eigenvalue) as eigenvalue,      -- λ_k, mean square of the fluctuations along mode k, summed over entries
    nan_to_null(energy_share) as energy_share,  -- λ_k / Σ λ; NULL where no field differs from the mean
    nan_to_null(cumulative) as cumulative       -- sum of the shares of the first k; NULL likewise
from parts
