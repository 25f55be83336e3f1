-- grain: one row per (capture, scope, reduce, direction, sign, keep_first, layers, score)
-- Which score finds what matters? Area under each score's damage curve, its rank, its lead over raw, and how surely it beats the score before it.
-- Published (Cunningham & Muca Cirone 2026): raw < vw < vwon < cw in both directions; no figure of ours to set beside.
-- $capture varchar = null: a capture's id; null takes every capture
-- $scope varchar = null: entry, token, row or layer_token; null takes every scope
-- $direction varchar = null: comprehensiveness or sufficiency; null takes both
-- $layers varchar = null: the layers masked at once, such as all or 3; null takes every set of layers
-- $resamples integer = 2000: bootstrap resamples of documents behind the intervals; 0 leaves the intervals out
with of_documents as (
    -- Random's draws first: the loss that is resampled is their mean. What is undefined stays so in all that it enters.
    select
        capture, scope, reduce, direction, sign, keep_first, layers, score, rate, doc,
        list_avg(list(coalesce(nll_sum, 'nan'::double) order by draw)) as nll_sum,
        min(nll_clean_sum) as nll_clean_sum,
        min(n_predicted)::double as n_predicted
    from masking
    where ($capture::varchar is null or capture = $capture) and ($scope::varchar is null or scope = $scope)
        and ($direction::varchar is null or direction = $direction) and ($layers::varchar is null or layers = $layers)
    group by capture, scope, reduce, direction, sign, keep_first, layers, score, rate, doc
),
points as (
    select
        capture, scope, reduce, direction, sign, keep_first, layers, score, rate::double as rate,
        list(nll_sum order by doc) as nll_sums
    from of_documents
    group by capture, scope, reduce, direction, sign, keep_first, layers, score, rate
),
weighted as (
    select
        *,
        trapezoid_weight(
            lag(rate) over along, rate, lead(rate) over along, max(rate) over whole
        ) as weight
    from points
    window
        whole as (partition by capture, scope, reduce, direction, sign, keep_first, layers, score),
        along as (partition by capture, scope, reduce, direction, sign, keep_first, layers, score order by rate)
),
-- The clean pass and the number of tokens are the same under every condition.
clean_runs as (
    select
        capture,
        count(*) as n_docs,
        list(nll_clean_sum order by doc) as clean_sums,
        list(n_predicted order by doc) as predicted
    from (
        select capture, doc, min(nll_clean_sum) as nll_clean_sum, min(n_predicted) as n_predicted
        from of_documents group by capture, doc
    )
    group by capture
),
resamples as (
    select n_docs, resample, bootstrap_weights(resample, n_docs) as times
    from (select distinct n_docs from clean_runs), range($resamples::bigint + 1) as numbers(resample)
),
resampled_runs as (
    select
        capture, n_docs, resample, times,
        list_dot_product(predicted, times) as n_predicted,
        list_dot_product(clean_sums, times) / list_dot_product(predicted, times) as clean
    from clean_runs
    join resamples using (n_docs)
),
damages as (
    select
        capture, scope, reduce, direction, sign, keep_first, layers, score, rate, weight, n_docs, resample,
        list_dot_product(nll_sums, times) / n_predicted as nll,
        clean
    from weighted
    join resampled_runs using (capture)
),
areas as (
    select
        capture, scope, reduce, direction, sign, keep_first, layers, score, n_docs, resample,
        list_sum(list(weight * (nll - clean) order by rate)) as nll_area,
        list_sum(list(weight * (exp(nll) - exp(clean)) order by rate)) as perplexity_area
    from damages
    group by capture, scope, reduce, direction, sign, keep_first, layers, score, n_docs, resample
),
compared as (
    select
        *,
        nll_area - max(nll_area) filter (where score = 'raw') over family as minus_raw,
        lag(score) over in_order as previous,
        faithfulness(direction, nll_area - lag(nll_area) over in_order) as lead_over_previous
    from areas
    window
        family as (partition by capture, scope, reduce, direction, sign, keep_first, layers, resample),
        in_order as (
            partition by capture, scope, reduce, direction, sign, keep_first, layers, resample
            order by list_position(score_order(), score)
        )
),
summed_up as (
    select
        capture, scope, reduce, direction, sign, keep_first, layers, score, n_docs,
        any_value(nll_area) filter (where resample = 0) as nll_area,
        interval_lo(nll_area, resample, n_docs) as nll_area_lo,
        interval_hi(nll_area, resample, n_docs) as nll_area_hi,
        any_value(perplexity_area) filter (where resample = 0) as perplexity_area,
        interval_lo(perplexity_area, resample, n_docs) as perplexity_area_lo,
        interval_hi(perplexity_area, resample, n_docs) as perplexity_area_hi,
        any_value(minus_raw) filter (where resample = 0) as nll_area_minus_raw,
        interval_lo(minus_raw, resample, n_docs) as nll_area_minus_raw_lo,
        interval_hi(minus_raw, resample, n_docs) as nll_area_minus_raw_hi,
        any_value(previous) as previous,
        avg((1 + sign(nan_to_null(lead_over_previous))) / 2) filter (where resample > 0 and n_docs > 1) as beats_previous_share
    from compared
    group by capture, scope, reduce, direction, sign, keep_first, layers, score, n_docs
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
    summed_up.n_docs,
    nan_to_null(nll_area) as nll_area,
    nan_to_null(nll_area_lo) as nll_area_lo,
    nan_to_null(nll_area_hi) as nll_area_hi,
    nan_to_null(perplexity_area) as perplexity_area,
    nan_to_null(perplexity_area_lo) as perplexity_area_lo,
    nan_to_null(perplexity_area_hi) as perplexity_area_hi,
    rank() over (
        partition by capture, scope, reduce, direction, sign, keep_first, layers
        order by faithfulness(direction, nll_area) desc
    ) as faithfulness_rank,
    nan_to_null(nll_area_minus_raw) as nll_area_minus_raw,
    nan_to_null(nll_area_minus_raw_lo) as nll_area_minus_raw_lo,
    nan_to_null(nll_area_minus_raw_hi) as nll_area_minus_raw_hi,
    'raw < vw < vwon < cw' as order_published,
    case when in_published_order(score) then previous end as previous,
    case when in_published_order(score) then beats_previous_share end as beats_previous_share
from summed_up
join captures using (capture)
order by capture, scope, reduce, direction, sign, keep_first, layers, list_position(score_order(), score)
