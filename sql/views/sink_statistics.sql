-- grain: one row per (capture, doc, layer, head)
-- How the value of position 0 differs from the others' of its document, before W_O and any gate. Heads that share a key/value head have the same row.
select
    capture,                                          -- the capture's id
    stage_key,                                        -- key of the stage run that wrote the row, 64 hex digits
    doc,                                              -- document, counted from 0 in corpus order
    layer,                                            -- layer, counted from 0
    head,                                             -- query head, counted from 0
    nan_to_null(norm_ratio) as norm_ratio,            -- ‖v_0‖ by the mean ‖v‖ of the other positions; NULL without others, or where all are 0
    nan_to_null(mean_cosine) as mean_cosine,          -- mean cosine of v_0 with the others, −1 … 1; NULL where either has no direction
    nan_to_null(norm_cv) as norm_cv,                  -- coefficient of variation of the others' norms; NULL as norm_ratio
    nan_to_null(coherence_max) as coherence_max,      -- largest |cosine| of two of the others, 0 … 1; NULL without a pair
    nan_to_null(coherence_mean) as coherence_mean     -- mean cosine of two of the others, −1 … 1; NULL without a pair
from parts
