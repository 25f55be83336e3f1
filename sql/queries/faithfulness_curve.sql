-- grain: one row per (capture, scope, reduce, direction, sign, keep_first, layers, score, rate)
-- What does masking what a score ranks highest, or lowest, do to the loss? Damage per rate; random is the mean of its draws, with their standard deviation.
-- No figure is published for single rates.
-- $capture varchar = null: a capture's id; null takes every capture
-- $scope varchar = null: entry, token, row or layer_token; null takes every scope
-- $score varchar = null: a score, such as cw_intra; null takes every score
-- $direction varchar = null: comprehensiveness or sufficiency; null takes both
-- $layers varchar = null: the layers masked at once, such as all or 3; null takes every set of layers
with of_draws as (
    select
        capture, scope, reduce, direction, sign, keep_first, layers, score, rate, draw,
        count(*) as n_docs,
        sum(n_predicted)::bigint as n_predicted,
        avg(masked_fraction::double) as masked_fraction,
        sum(coalesce(nll_sum, 'nan'::double)) as nll_sum,
        sum(nll_clean_sum) as nll_clean_sum
    from masking
    where ($capture::varchar is null or capture = $capture) and ($scope::varchar is null or scope = $scope)
        and ($score::varchar is null or score = $score) and ($direction::varchar is null or direction = $direction)
        and ($layers::varchar is null or layers = $layers)
    group by capture, scope, reduce, direction, sign, keep_first, layers, score, rate, draw
),
curves as (
    select
        capture, scope, reduce, direction, sign, keep_first, layers, score, rate,
        count(*) as n_draws,
        max(n_docs) as n_docs,
        max(n_predicted) as n_predicted,
        avg(masked_fraction) as masked_fraction,
        avg(nll_sum / n_predicted) as nll,
        avg(nll_clean_sum / n_predicted) as nll_clean,
        case when count(*) > 1 then stddev_samp(nll_sum / n_predicted) end as nll_draws_sd
    from of_draws
    group by capture, scope, reduce, direction, sign, keep_first, layers, score, rate
)
select
    capture,
    model,
    scope,
    reduce,
    direction,
    sign,
    keep_first,
    layers,
    score,
    rate,
    curves.n_docs,
    n_predicted,
    masked_fraction,
    nan_to_null(nll - nll_clean) as nll_change,
    nan_to_null(nll_draws_sd) as nll_change_draws_sd,
    n_draws,
    nan_to_null(exp(nll) - exp(nll_clean)) as perplexity_change,
    exp(nll_clean) as perplexity_clean
from curves
join captures using (capture)
order by
    capture, scope, reduce, direction, sign, keep_first, layers, list_position(score_order(), score), rate
