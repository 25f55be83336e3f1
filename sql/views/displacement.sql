-- grain: one row per (capture, doc, protocol, arm, delta, delta_kind, layers, first_token, seed, layer, position)
-- How far each token of the sampled documents was moved: what shows whether one of huge norm took the budget.
select
    capture,                                  -- the capture's id
    stage_key,                                -- key of the stage run that wrote the row, 64 hex digits
    doc,                                      -- document, counted from 0 in corpus order
    protocol,                                 -- exact moves every token by δ; published is the authors' own code, which matches the mean angle over a document's tokens
    arm,                                      -- magnitude changes the length alone, angle the direction alone
    nan_to_null(delta) as delta,              -- δ, in the unit of ‖h‖, or as a share of its median
    delta_kind,                               -- absolute, or relative to the layer's median ‖h‖ over the capture's tokens
    layers,                                   -- the layers whose output is moved, together: all, one, or several such as 10-19
    first_token,                              -- include or exclude: whether position 0 is moved too
    seed,                                     -- number of the draw of the noise
    layer,                                    -- the perturbed layer, counted from 0, whose output this is
    position,                                 -- the token's place in the document, counted from 0
    nan_to_null(norm) as norm,                -- ‖h‖ in the perturbed run, before it is moved in this layer
    nan_to_null(displacement) as displacement -- ‖h′ − h‖ as measured after the cast to the model's dtype; 0 where the token stayed
from parts
