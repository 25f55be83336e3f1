-- grain: one row per (capture, layer, scale, lag, query_i, query_j)
-- How closely the fluctuations of two query rows go together over documents, at one scale and lag.
select
    capture,                               -- the capture's id
    stage_key,                             -- key of the stage run that wrote the row, 64 hex digits
    layer,                                 -- layer, counted from 0
    nan_to_null(scale) as scale,           -- scale a of the wavelet, in lags
    lag,                                   -- lag τ = ⌈√2·a⌉ at which the rows are compared
    query_i,                               -- query position i, counted from 0, at least 2√2·a
    query_j,                               -- query position j, not below query_i
    nan_to_null(gamma) as gamma,           -- |⟨W_i conj W_j⟩| / √(⟨|W_i|²⟩⟨|W_j|²⟩) over documents, 0 … 1; 1 for j = i; NULL where a row does not fluctuate
    nan_to_null(gamma_null) as gamma_null  -- the same with documents permuted for i and j by themselves, mean over draws; about 0.89/√N for noise
from parts
