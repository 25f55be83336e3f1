-- grain: one row per (capture, doc, strategy, retention, seed)
-- The loss of a document with whole heads zeroed, in the order of a strategy, until a share of them stays.
select
    capture,                                      -- the capture's id
    stage_key,                                    -- key of the stage run that wrote the row, 64 hex digits
    doc,                                          -- document, counted from 0 in corpus order
    strategy,                                     -- what orders the heads: taxonomy and its other orders of classes, weight_magnitude, entropy_high, entropy_low, contribution, f_score, or random
    nan_to_null(retention) as retention,          -- share of the heads that stays, above 0 and at most 1
    seed,                                         -- number of the random order; 0 where nothing is drawn
    nan_to_null(nll_sum) as nll_sum,              -- negative log-likelihood summed over the predicted tokens, in nats
    nan_to_null(nll_clean_sum) as nll_clean_sum,  -- the same of the clean pass
    n_predicted,                                  -- number of predicted tokens
    heads_kept                                    -- number of heads that stay, ⌈retention · heads⌉ of all layers that the store keeps
from parts
