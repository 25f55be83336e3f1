-- grain: one row per (capture, doc, layer, head)
-- The loss of a document with one head zeroed: what it gives to the output projection, and nothing else.
select
    capture,                                      -- the capture's id
    stage_key,                                    -- key of the stage run that wrote the row, 64 hex digits
    doc,                                          -- document, counted from 0 in corpus order
    layer,                                        -- layer, counted from 0
    head,                                         -- query head, counted from 0
    nan_to_null(nll_sum) as nll_sum,              -- negative log-likelihood summed over the predicted tokens, in nats
    nan_to_null(nll_clean_sum) as nll_clean_sum,  -- the same of the clean pass
    n_predicted                                   -- number of predicted tokens
from parts
