-- grain: one row per (capture, layer, target, feature)
-- What can be read off a word's hidden state at a layer: its part of speech, and its depth in the sentence's tree, from the state's direction, its magnitude, and both.
select
    capture,                                        -- the capture's id
    stage_key,                                      -- key of the stage run that wrote the row, 64 hex digits
    layer,                                          -- the residual stream before this layer, counted from 0; the number of layers stands for what leaves the last
    target,                                         -- what is read off: pos (universal part of speech), depth (arcs between a word and the root)
    feature,                                        -- what it is read off from: direction ĥ = h/‖h‖, magnitude ‖h‖, both (h itself)
    nan_to_null(score) as score,                    -- the probe's score on the test sentences; NULL where none could be fitted
    nan_to_null(score_lo) as score_lo,              -- lower end of the score's 95 % interval, by bootstrap over the test sentences
    nan_to_null(score_hi) as score_hi,              -- upper end of the same
    nan_to_null(score_majority) as score_majority,  -- score of always answering the commonest part of speech, or the mean depth, of the training sentences
    nan_to_null(score_shuffled) as score_shuffled,  -- score of the same fit on labels that were shuffled among the training words
    nan_to_null(spearman) as spearman,              -- rank correlation of predicted and true depth on the test sentences; NULL of pos
    metric,                                         -- what the scores are: accuracy of pos, r2 of depth (1 − Σ(y − ŷ)²/Σ(y − ȳ)²)
    n_train,                                        -- words of the training sentences, four fifths of all
    n_test,                                         -- words of the test sentences
    n_classes,                                      -- parts of speech among the training words; NULL of depth
    nan_to_null(penalty) as penalty,                -- chosen between folds of the training sentences: C of the logistic regression (inverse), α of the ridge
    converged                                       -- whether every fit behind the row reached the solver's tolerance
from parts
