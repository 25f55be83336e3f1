-- grain: one row per (capture, doc, layer, head, query)
-- One query row of a head: sums that must hold, and norms.
select
    capture,                                             -- the capture's id
    stage_key,                                           -- key of the stage run that wrote the row, 64 hex digits
    doc,                                                 -- document, counted from 0 in corpus order
    layer,                                               -- layer, counted from 0
    head,                                                -- query head, counted from 0
    query,                                               -- query position i, counted from 0
    nan_to_null(sum_alpha) as sum_alpha,                 -- Σ_j α: 1 less the learned-sink mass, up to the dtype's rounding
    nan_to_null(sum_cw_intra) as sum_cw_intra,           -- Σ_j cw_intra: 1; NULL where output_norm is 0
    nan_to_null(sum_cw_inter) as sum_cw_inter,           -- Σ_j cw_inter: this head's part of the layer's output; NULL where layer_output_norm is 0
    nan_to_null(negative_share) as negative_share,       -- Σ|negative cw_intra| / Σ|cw_intra|, 0 … ½; NULL where output_norm is 0
    nan_to_null(output_norm) as output_norm,             -- ‖o‖ of the head, in units of the residual stream
    nan_to_null(layer_output_norm) as layer_output_norm  -- ‖o‖ of all heads together, in units of the residual stream
from parts
