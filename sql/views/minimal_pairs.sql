-- grain: one row per (capture, task, item, protocol, arm, pair_noise, delta, delta_kind, layers, first_token, seed)
-- Whether the model holds the grammatical sentence of a minimal pair likelier than the other, clean (arm none) and with the residual stream moved as in `perturbation`.
select
    capture,                              -- the capture's id
    stage_key,                            -- key of the stage run that wrote the row, 64 hex digits
    task,                                 -- the file's name without its suffixes
    item,                                 -- pair of the task, counted from 0 in the order of its files
    protocol,                             -- exact or published, as in `perturbation`; none of the clean model, as in the other columns of text that name a condition
    arm,                                  -- magnitude changes the length alone, angle the direction alone; none: the clean model
    pair_noise,                           -- how the sentences of a pair share their noise: shared all of it, independent none, published the vectors where they have as many tokens each, and no signs
    nan_to_null(delta) as delta,          -- δ, in the unit of ‖h‖, or as a share of its median; 0 of the clean model
    delta_kind,                           -- absolute, or relative to the layer's median ‖h‖ over the capture's tokens
    layers,                               -- the layers whose output is moved, together: all, one, or several such as 10-19
    first_token,                          -- include or exclude: whether position 0, the BOS token where there is one, is moved too
    seed,                                 -- number of the draw of the noise
    nan_to_null(logp_good) as logp_good,  -- log-probability of the grammatical sentence, in nats, summed over its scored tokens
    nan_to_null(logp_bad) as logp_bad,    -- the same of the other
    correct,                              -- whether logp_good > logp_bad; a tie is not
    first_scored,                         -- whether a BOS token stands in front, so that the first token is scored; without one nothing predicts it
    n_good,                               -- scored tokens of the grammatical sentence
    n_bad,                                -- scored tokens of the other
    n_tokens,                             -- tokens of both sentences and all perturbed layers that were to be moved
    unmoved                               -- those left as they were: ‖h‖ ≤ δ in exact, ‖h‖ = 0 in published
from parts
