-- grain: one row per (capture, layer, target, feature)
-- What can be read off a hidden state's direction, its magnitude, and both? Accuracy for parts of speech and R² for depth, with 95 % intervals over sentences, beside baselines and the published figure.
-- Published (Vardhan & Teja 2026): parts of speech are read from the direction with 81.6 % accuracy, from the magnitude with 29.7 %.
-- $capture varchar = null: a capture's id; null takes every capture
-- $target varchar = null: pos or depth; null takes both
-- $layer integer = null: a layer, counted from 0; null takes every layer
with chosen as (
    select * from probes
    where
        ($capture::varchar is null or capture = $capture)
        and ($target::varchar is null or target = $target)
        and ($layer::integer is null or layer = $layer)
)
select
    capture,
    model,
    norm,
    layer,
    target,
    feature,
    metric,
    score,
    score_lo,
    score_hi,
    case when target = 'pos' then case feature when 'direction' then 0.816::double when 'magnitude' then 0.297::double end end as score_published,
    score_majority,
    score_shuffled,
    score_lo > greatest(score_majority, score_shuffled) as above_baselines,
    spearman,
    n_train,
    n_test,
    converged
from chosen
join captures using (capture)
order by capture, target = 'depth', layer, list_position(['direction', 'magnitude', 'both'], feature)
