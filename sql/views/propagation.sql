-- grain: one row per (capture, doc, protocol, arm, delta, delta_kind, layers, first_token, seed, layer)
-- How far from the clean run the residual stream of a perturbed one lies, from the first perturbed layer on.
select
    capture,                                                   -- the capture's id
    stage_key,                                                 -- key of the stage run that wrote the row, 64 hex digits
    doc,                                                       -- document, counted from 0 in corpus order
    protocol,                                                  -- exact moves every token by δ; published is the authors' own code, which matches the mean angle over a document's tokens
    arm,                                                       -- magnitude changes the length alone, angle the direction alone
    nan_to_null(delta) as delta,                               -- δ, in the unit of ‖h‖, or as a share of its median
    delta_kind,                                                -- absolute, or relative to the layer's median ‖h‖ over the capture's tokens
    layers,                                                    -- the layers whose output is moved, together: all, one, or several such as 10-19
    first_token,                                               -- include or exclude: whether position 0 is moved too
    seed,                                                      -- number of the draw of the noise
    layer,                                                     -- the layer, counted from 0, whose output this is
    nan_to_null(distance_mean) as distance_mean,               -- mean over all tokens of ‖h′ − h‖, h of the clean run
    nan_to_null(distance_first_token) as distance_first_token, -- the same of position 0 alone
    n_tokens                                                   -- tokens of the document
from parts
