-- grain: one row per (capture, doc, layer, head, query)
-- The head's output as a mixture of the first token's value and the rest. Queries i ≥ 1 that see key 0; all but the first of an encoder.
select
    capture,                                            -- the capture's id
    stage_key,                                          -- key of the stage run that wrote the row, 64 hex digits
    doc,                                                -- document, counted from 0 in corpus order
    layer,                                              -- layer, counted from 0
    head,                                               -- query head, counted from 0
    query,                                              -- query position i, counted from 0
    nan_to_null(sink_rate) as sink_rate,                -- a = α of key 0, 0 … 1
    nan_to_null(output_norm) as output_norm,            -- ‖o‖ of the head, in units of the residual stream
    nan_to_null(sink_norm) as sink_norm,                -- ‖s‖, the projected value of key 0
    nan_to_null(tail_norm) as tail_norm,                -- ‖m‖, the attention-weighted mean of the other projected values; NULL where a is all there is
    nan_to_null(cosine_sink_tail) as cosine_sink_tail,  -- cosine of s and m, −1 … 1; NULL where either is 0
    nan_to_null(a_star) as a_star,                      -- sink rate a* at which ‖a s + (1 − a) m‖ is least, unbounded; NULL where s = m, or m is NULL
    nan_to_null(min_norm) as min_norm,                  -- the norm at a*, in units of the residual stream; NULL where a* is
    interior                                            -- true where 0 < a* < 1; NULL where a* is
from parts
