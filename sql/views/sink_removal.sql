-- grain: one row per (capture, doc, layers)
-- The loss of a document with the first token's value zeroed in every head of a layer, or of all layers, attention as it was.
select
    capture,                                      -- the capture's id
    stage_key,                                    -- key of the stage run that wrote the row, 64 hex digits
    doc,                                          -- document, counted from 0 in corpus order
    layers,                                       -- the layers in which it is zeroed: one, or all together (all; the kept ones, such as 10-19, of a store of chosen layers)
    nan_to_null(nll_sum) as nll_sum,              -- negative log-likelihood summed over the predicted tokens, in nats
    nan_to_null(nll_clean_sum) as nll_clean_sum,  -- the same of the clean pass
    n_predicted                                   -- number of predicted tokens
from parts
