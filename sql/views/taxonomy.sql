-- grain: one row per (capture, layer, head, rule)
-- A head's class by where its heaviest contribution α‖v‖ stands, over all documents: at the query itself, at position 0, or elsewhere. Queries i ≥ 1.
select
    capture,                                            -- the capture's id
    stage_key,                                          -- key of the stage run that wrote the row, 64 hex digits
    layer,                                              -- layer, counted from 0
    head,                                               -- query head, counted from 0
    rule,                                               -- plurality, majority (without one above one half: reset) or final_query (plurality of last positions)
    class,                                              -- retriever (self), mixer (sink) or reset (other); ties in the order mixer, retriever, reset
    nan_to_null(share_self) as share_self,              -- share of queries whose heaviest key is the query itself
    nan_to_null(share_sink) as share_sink,              -- share of queries whose heaviest key is position 0
    nan_to_null(share_other) as share_other,            -- share of all other queries; the three sum to 1
    nan_to_null(margin) as margin,                      -- the largest share less the next, 0 … 1
    n,                                                  -- number of queries tallied, over all documents
    nan_to_null(agreement_halves) as agreement_halves   -- share of 100 random halvings of the documents whose halves give one class; NULL with one document
from parts
