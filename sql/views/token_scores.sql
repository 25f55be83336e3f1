-- grain: one row per (capture, doc, layer, head, position, reduce)
-- What a key token contributes to the queries that see it and predict a token (positions 0 … T − 2); of an encoder, which predicts none, to all queries (positions 0 … T − 1).
select
    capture,                                    -- the capture's id
    stage_key,                                  -- key of the stage run that wrote the row, 64 hex digits
    doc,                                        -- document, counted from 0 in corpus order
    layer,                                      -- layer, counted from 0
    head,                                       -- query head, counted from 0
    position,                                   -- token position in the document, counted from 0
    reduce,                                     -- mean or sum over the queries
    n_queries,                                  -- number of queries that see the key and predict a token; T of an encoder
    nan_to_null(raw) as raw,                    -- attention weight α, mean or sum over the queries
    nan_to_null(vw) as vw,                      -- α‖ṽ‖, ṽ the value after the output projection, in units of the residual stream
    nan_to_null(vwon) as vwon,                  -- α‖ṽ‖/‖o‖, o the head's output
    nan_to_null(cw_intra) as cw_intra,          -- α⟨ṽ, o⟩/‖o‖², the share of the head's output; negative where the key works against it
    nan_to_null(cw_intra_abs) as cw_intra_abs,  -- |cw_intra|, taken before the mean or sum
    nan_to_null(cw_inter) as cw_inter,          -- the same share of the output of all heads of the layer
    nan_to_null(cw_inter_abs) as cw_inter_abs   -- |cw_inter|, taken before the mean or sum
from parts
