-- grain: one row per (capture, doc, position)
-- One token of a document.
select
    capture,                 -- the capture's id
    stage_key,               -- key of the stage run that wrote the row, 64 hex digits
    doc,                     -- document, counted from 0 in corpus order
    position,                -- token position in the document, counted from 0
    token_id,                -- the token's id in the model's vocabulary; NULL of an image, whose patches have none
    token,                   -- the token as text; of an image [CLS], [DIST], [REG n], or patch row,column
    nan_to_null(nll) as nll  -- negative log-likelihood of this token given those before it, in nats; NULL at position 0, which nothing predicts, and everywhere if the model is an encoder
from parts
