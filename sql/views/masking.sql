-- grain: one row per (capture, doc, scope, reduce, direction, sign, keep_first, layers, score, draw, rate)
-- The loss of a document with a share of what attention moves masked: what a score ranks highest, or lowest. Weights stay as they were; the values of what is masked are zeroed.
select
    capture,                                         -- the capture's id
    stage_key,                                       -- key of the stage run that wrote the row, 64 hex digits
    doc,                                             -- document, counted from 0 in corpus order
    scope,                                           -- what is ranked: entry (query, key) of a head, row (inside a query's row), token (keys of a head), layer_token (keys of a layer, for all heads)
    reduce,                                          -- how a token's score comes from its entries': sum or mean over the queries; none where entries are ranked
    direction,                                       -- comprehensiveness masks the highest-ranked (the larger the damage the better the score), sufficiency the lowest-ranked
    sign,                                            -- absolute ranks by |score|, signed by the score
    keep_first,                                      -- whether position 0 is exempt
    layers,                                          -- the layers that are masked at once: all, one, or several such as 10-19
    score,                                           -- raw, vw, vwon, cw_intra, cw_inter, norm, alti, rollout, or random
    draw,                                            -- number of the random ranking; 0 where nothing is drawn
    nan_to_null(rate) as rate,                       -- share of the candidates that is masked, ⌊rate·n⌋ of n
    nan_to_null(nll_sum) as nll_sum,                 -- negative log-likelihood summed over the predicted tokens, in nats
    nan_to_null(nll_clean_sum) as nll_clean_sum,     -- the same of the clean pass
    n_predicted,                                     -- number of predicted tokens
    nan_to_null(masked_fraction) as masked_fraction  -- share of all visible entries, of the queries that predict a token, whose value went
from parts
