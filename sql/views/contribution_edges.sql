-- grain: one row per (capture, doc, layer, head, query, key)
-- The entries of a query row with the largest |cw_intra|.
select
    capture,                                      -- the capture's id
    stage_key,                                    -- key of the stage run that wrote the row, 64 hex digits
    doc,                                          -- document, counted from 0 in corpus order
    layer,                                        -- layer, counted from 0
    head,                                         -- query head, counted from 0
    query,                                        -- query position i, counted from 0
    key,                                          -- key position j, counted from 0
    rank,                                         -- 1 for the largest |cw_intra| of the row; ties go to the smaller key
    nan_to_null(alpha) as alpha,                  -- attention weight α
    nan_to_null(relative_norm) as relative_norm,  -- ‖ṽ‖/‖o‖; NULL where the head's output is 0
    nan_to_null(cosine) as cosine,                -- cosine of ṽ and o, −1 … 1; NULL where either is 0
    nan_to_null(cw_intra) as cw_intra,            -- alpha · relative_norm · cosine, the intra-head contribution weight
    nan_to_null(cw_inter) as cw_inter             -- inter-head contribution weight; NULL where the layer's output is 0
from parts
