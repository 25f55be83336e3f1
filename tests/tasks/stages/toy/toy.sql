-- grain: one row per (capture, doc, layer, head, norm)
-- How long the longest value of a head is.
select
    capture,                                -- the capture's id
    stage_key,                              -- key of the stage run that wrote the row, 64 hex digits
    doc,                                    -- document, counted from 0 in corpus order
    layer,                                  -- layer, counted from 0
    head,                                   -- head, counted from 0
    norm,                                   -- l1 or l2
    nan_to_null(longest) as longest         -- the largest norm of a value
from parts
