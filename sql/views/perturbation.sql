-- grain: one row per (capture, doc, protocol, arm, delta, delta_kind, layers, first_token, seed)
-- The loss of a document, and how even attention is, with the residual stream that leaves some layers moved by δ in length or in direction.
select
    capture,                                                       -- the capture's id
    stage_key,                                                     -- key of the stage run that wrote the row, 64 hex digits
    doc,                                                           -- document, counted from 0 in corpus order
    protocol,                                                      -- exact moves every token by δ; published is the authors' own code, which matches the mean angle over a document's tokens
    arm,                                                           -- magnitude changes the length alone, angle the direction alone
    nan_to_null(delta) as delta,                                   -- δ, in the unit of ‖h‖, or as a share of its median
    delta_kind,                                                    -- absolute, or relative to the layer's median ‖h‖ over the capture's tokens
    layers,                                                        -- the layers whose output is moved, together: all, one, or several such as 10-19
    first_token,                                                   -- include or exclude: whether position 0 is moved too
    seed,                                                          -- number of the draw of the noise
    nan_to_null(nll_sum) as nll_sum,                               -- negative log-likelihood summed over the predicted tokens, in nats
    nan_to_null(nll_clean_sum) as nll_clean_sum,                   -- the same of the clean pass
    n_predicted,                                                   -- number of predicted tokens
    nan_to_null(displacement_mean) as displacement_mean,           -- mean over the moved tokens of all perturbed layers of ‖h′ − h‖, as measured after the cast to the model's dtype; NULL where none was moved
    nan_to_null(displacement_max_error) as displacement_max_error, -- the largest relative error of a moved token's ‖h′ − h‖ to δ, rounding of the cast included; large by nature in the angle arm of published
    nan_to_null(norm_ratio_max) as norm_ratio_max,                 -- the largest ‖h‖/δ of a moved token, which bounds what rounding adds to that error
    n_tokens,                                                      -- tokens of all perturbed layers that were to be moved
    unmoved,                                                       -- those left as they were: ‖h‖ ≤ δ in exact, ‖h‖ = 0 in published
    flagged,                                                       -- whether these are more than 5 %: the row says less of δ than others
    nan_to_null(entropy) as entropy,                               -- mean over heads, queries and all layers after the first perturbed one of −Σ α log α, in nats; NULL where none follows, or the family's code shows no weights
    nan_to_null(entropy_clean) as entropy_clean                    -- the same of the clean pass
from parts
