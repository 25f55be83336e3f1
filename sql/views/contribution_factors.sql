-- grain: one row per (capture, layer, head, token_group)
-- How much of the spread of log |cw_intra| comes from attention, from value norm and from direction, over all documents.
select
    capture,                                                -- the capture's id
    stage_key,                                              -- key of the stage run that wrote the row, 64 hex digits
    layer,                                                  -- layer, counted from 0
    head,                                                   -- query head, counted from 0
    token_group,                                            -- sink (j = 0 < i), self (j = i > 0) or tail (0 < j < i; of an encoder every j that is neither 0 nor i)
    n,                                                      -- number of entries (query, key) in the group whose factors all have a logarithm
    nan_to_null(share_alpha) as share_alpha,                -- Cov(log α, log |cw|) / Var(log |cw|); the three sum to 1; NULL without variance
    nan_to_null(share_norm) as share_norm,                  -- share of log(‖ṽ‖/‖o‖), likewise
    nan_to_null(share_cosine) as share_cosine,              -- share of log |cos(ṽ, o)|, likewise
    nan_to_null(mean_alpha) as mean_alpha,                  -- mean attention weight α; NULL where n is 0
    nan_to_null(mean_relative_norm) as mean_relative_norm,  -- mean ‖ṽ‖/‖o‖; NULL where n is 0
    nan_to_null(mean_cosine) as mean_cosine,                -- mean cosine of ṽ and o, −1 … 1; NULL where n is 0
    nan_to_null(mean_cw) as mean_cw                         -- mean cw_intra; NULL where n is 0
from parts
