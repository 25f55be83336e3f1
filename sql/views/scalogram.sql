-- grain: one row per (capture, layer, head, protocol, omega0, field, scale)
-- Energy of attention along the causal lag at one scale of a Morlet wavelet: a scale is a width or a period, not a lag.
select
    capture,                                    -- the capture's id
    stage_key,                                  -- key of the stage run that wrote the row, 64 hex digits
    layer,                                      -- layer, counted from 0
    head,                                       -- query head, counted from 0; NULL for the mean of all heads
    protocol,                                   -- exact, or published: the printed protocol
    nan_to_null(omega0) as omega0,              -- the wavelet's frequency at scale 1, in radians
    field,                                      -- observed; uniform: rows of equal weights; doc_shuffle: each entry's documents permuted by themselves
    nan_to_null(scale) as scale,                -- scale a, in lags: a sinusoid of period p peaks at a = p·ω0/2π
    nan_to_null(energy) as energy,              -- mean |W|²/a over positions inside the cone of influence, rows i ≥ T/4 and documents; of published raw |W|²
    nan_to_null(energy_share) as energy_share,  -- energy divided by the sum over scales; NULL where that is 0
    dominant                                    -- true for local maxima, at most 4 by energy, or the largest where there is none; of published for the 4 largest
from parts
