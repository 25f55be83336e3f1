-- grain: one row per (capture, layer, target, feature)
-- Accuracies lie in 0 … 1 and R² is at most 1, with its interval in order; no constant answer has an R² above 0; the metric is the target's, and rank correlations are of depth alone.
-- $everything boolean = false: all rows checked, instead of those that break it
with measured as (
    select
        capture, layer, target, feature,
        (not coalesce(
            metric = case target when 'pos' then 'accuracy' when 'depth' then 'r2' end
            and (target = 'depth' or (spearman is null and n_classes >= 1))
            and (spearman is null or abs(spearman) <= 1)
            and n_train >= 0 and n_test >= 0
            and coalesce(score_lo <= score_hi, true)
            and list_bool_and(list_transform(
                [score, score_lo, score_hi, score_majority, score_shuffled],
                lambda x: x is null or (x <= 1 + 1e-6 and (target = 'depth' or x >= 0))
            ))
            and (target = 'pos' or score_majority is null or score_majority <= 1e-6), false
        ))::integer as error,
        0 as tolerance
    from probes
)
select * from measured where $everything or not coalesce(error <= tolerance, false)
