-- grain: one row per (capture, doc)
-- One window of tokens, and how well the model predicts it.
select
    capture,                          -- the capture's id
    stage_key,                        -- key of the stage run that wrote the row, 64 hex digits
    doc,                              -- document, counted from 0 in corpus order
    source,                           -- where the text came from: file, record, or topic; of an image its file
    start_token,                      -- token of its text at which the window begins, counted from 0, without its BOS
    digest,                           -- sha256 of the document's token ids, or of an image's pixels as the model is given them (64 hex digits)
    n_tokens,                         -- number of tokens T
    nan_to_null(nll_sum) as nll_sum,  -- negative log-likelihood of all predicted tokens, in nats, summed
    n_predicted                       -- number of predicted tokens: T − 1, or 0 if the model is an encoder
from parts
