-- grain: one row per (capture, layer, head, row_group, sink)
-- How alike the outputs of a head are, with the sink's value and without.
select
    capture,                                                   -- the capture's id
    stage_key,                                                 -- key of the stage run that wrote the row, 64 hex digits
    layer,                                                     -- layer, counted from 0
    head,                                                      -- query head, counted from 0
    row_group,                                                 -- low_norm (the fifth of rows with the smallest ‖o‖) or rest
    sink,                                                      -- kept, or zeroed (the value of key 0 set to 0, α unchanged)
    n,                                                         -- number of query rows in the group, over all documents
    nan_to_null(mean_pairwise_cosine) as mean_pairwise_cosine  -- mean cosine of two outputs of a document, averaged over documents; NULL without a pair
from parts
