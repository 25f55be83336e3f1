-- grain: one row per (capture, layer, head, protocol, filter_scale, field, draw, n_snapshots, epsilon)
-- How complex an ensemble of attention fields is: the decay of its spectrum, and how many modes hold all but a share ε of its energy.
select
    capture,                                                   -- the capture's id
    stage_key,                                                 -- key of the stage run that wrote the row, 64 hex digits
    layer,                                                     -- layer, counted from 0
    head,                                                      -- query head, counted from 0; NULL for the mean of all heads
    protocol,                                                  -- exact, or published: the printed protocol
    nan_to_null(filter_scale) as filter_scale,                 -- scale a* of the filter along the lag, in lags; NULL for the unfiltered field
    field,                                                     -- observed; lag_shuffle: fluctuations whose lags are permuted per row and snapshot; gaussian: noise of each entry's variance
    draw,                                                      -- random draw of a null, counted from 0; 0 where nothing is drawn
    n_snapshots,                                               -- documents N of the ensemble; fewer than all are a seeded subsample, larger ones hold smaller ones
    nan_to_null(epsilon) as epsilon,                           -- share ε of the energy that the modes may leave
    nan_to_null(beta) as beta,                                 -- β: −slope of ln λ_k on ln k, k ≤ 30 and λ_k > 1e-12 λ_1; NULL with fewer than 3 points; published: 1 then, and at least 0.01
    nan_to_null(beta_r2) as beta_r2,                           -- R² of that fit, 0 … 1; NULL where it is not defined
    nan_to_null(beta_se) as beta_se,                           -- standard error of β; NULL where there was no fit
    nan_to_null(t_spec) as t_spec,                             -- 1/β: large where energy lies over many modes; infinite where λ does not decay
    h_star,                                                    -- H*(ε), fewest modes that leave at most ε of the energy; NULL where there is none; published: one more
    saturated,                                                 -- true where H* ≥ 0.9 (N − 1): the number of documents decides, not the model
    nan_to_null(total_energy) as total_energy,                 -- Σ λ, mean square of a field's distance to the mean field
    nan_to_null(reconstruction_error) as reconstruction_error  -- mean square of what the fewest such modes leave of a field; NULL of nulls and subsamples, whose modes are not worked out
from parts
