-- grain: one row per (capture, doc, protocol, arm, delta, delta_kind, layers, first_token, seed, target, repaired_layers)
-- The loss of a document with the perturbation on and the clean run's values put back in a part of some of the perturbed layers.
select
    capture,                                             -- the capture's id
    stage_key,                                           -- key of the stage run that wrote the row, 64 hex digits
    doc,                                                 -- document, counted from 0 in corpus order
    protocol,                                            -- exact moves every token by δ; published is the authors' own code, which matches the mean angle over a document's tokens
    arm,                                                 -- magnitude changes the length alone, angle the direction alone
    nan_to_null(delta) as delta,                         -- δ, in the unit of ‖h‖, or as a share of its median
    delta_kind,                                          -- absolute, or relative to the layer's median ‖h‖ over the capture's tokens
    layers,                                              -- the layers whose output is moved, together: all, one, or several such as 10-19
    first_token,                                         -- include or exclude: whether position 0 is moved too
    seed,                                                -- number of the draw of the noise
    target,                                              -- what is put back: attention_output, attention_weights, norm_output (every norm whose output a sub-layer reads) or mlp_output
    repaired_layers,                                     -- where, of the perturbed layers that have the part: all of the model, one, or several such as 10-14
    nan_to_null(nll_clean_sum) as nll_clean_sum,         -- negative log-likelihood of the clean pass summed over the predicted tokens, in nats
    nan_to_null(nll_perturbed_sum) as nll_perturbed_sum, -- the same perturbed, nothing put back
    nan_to_null(nll_repaired_sum) as nll_repaired_sum,   -- the same perturbed by the same noise, and repaired
    n_predicted                                          -- number of predicted tokens
from parts
