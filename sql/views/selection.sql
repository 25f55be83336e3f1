-- grain: one row per (capture, doc, layer, head, query, ranking, distance, sink, n)
-- How well the N best-ranked keys of a query lie apart from the rest, around their sum in value space (before W_O). Queries with more than N candidates.
select
    capture,                                                    -- the capture's id
    stage_key,                                                  -- key of the stage run that wrote the row, 64 hex digits
    doc,                                                        -- document, counted from 0 in corpus order
    layer,                                                      -- layer, counted from 0
    head,                                                       -- query head, counted from 0
    query,                                                      -- query position i, counted from 0
    ranking,                                                    -- what ranks the keys: attention (α) or contribution (α‖v‖)
    distance,                                                   -- distance from the sum: euclidean (of α v) or cosine (of v)
    sink,                                                       -- included, or excluded: position 0 is no candidate
    n,                                                          -- keys selected N
    nan_to_null(precision) as precision,                        -- P, share of the selected among all keys as near as the farthest of them, 0 … 1
    nan_to_null(recall) as recall,                              -- R, share of the selected that are nearer than every other key, 0 … 1
    nan_to_null(f_score) as f_score,                            -- F = 2PR/(P + R), 0 where R is 0
    inversions,                                                 -- pairs of a selected key and another that is as near or nearer
    nan_to_null(margin) as margin,                              -- distance of the nearest other key less that of the farthest selected; 0 where they count as equal
    nan_to_null(mass) as mass,                                  -- Σ α over the selected keys
    nan_to_null(random_f_mean) as random_f_mean,                -- mean F of random rankings of the same keys; NULL where they were not drawn
    nan_to_null(random_f_sd) as random_f_sd,                    -- standard deviation of the same; NULL where fewer than two were drawn
    nan_to_null(certified_precision) as certified_precision,    -- least P that lengths and the largest cosine guarantee; NULL for cosine, and where heads are gated
    nan_to_null(certified_recall) as certified_recall           -- least R, likewise
from parts
