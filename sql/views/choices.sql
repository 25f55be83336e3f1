-- grain: one row per (capture, task, item, scope, reduce, direction, sign, keep_first, layers, score, draw, rate)
-- Which continuation of a multiple-choice question the model holds likeliest, clean (scope none) and with parts of the context masked as in `masking`.
select
    capture,                        -- the capture's id
    stage_key,                      -- key of the stage run that wrote the row, 64 hex digits
    task,                           -- mmlu, winogrande, boolq, or the name of a file of context, choices and label
    item,                           -- question of the task, counted from 0 in the order of its files
    scope,                          -- what is ranked: entry, token, row or layer_token as in `masking`; none of the clean model, as in the five columns of text that follow
    reduce,                         -- how a token's score comes from its entries': sum or mean over the queries; none where entries are ranked
    direction,                      -- comprehensiveness masks the highest-ranked, sufficiency the lowest-ranked
    sign,                           -- absolute ranks by |score|, signed by the score
    keep_first,                     -- whether position 0 is exempt; false of the clean model
    layers,                         -- the layers that are masked at once: all, one, or several such as 10-19
    score,                          -- raw, vw, vwon, cw_intra, cw_inter, norm, alti, rollout, or random
    draw,                           -- number of the random ranking; 0 where nothing is drawn
    nan_to_null(rate) as rate,      -- share of the context's candidates that is masked; 0 of the clean model
    label,                          -- the right choice, counted from 0
    picked,                         -- the choice whose tokens have the largest log-probability together
    picked_normalised,              -- the choice whose tokens have the largest mean log-probability
    nan_to_null(margin) as margin,  -- log-probability of the right choice less that of the likeliest other, in nats; positive where it is picked
    n_choices                       -- choices of the question: chance is 1/n_choices
from parts
