-- grain: one row per (capture, layer, head)
-- Which heads matter alone, though their class does not? Change of the loss with each head zeroed, and how far it stands out among the heads of its class.
-- Published (Mudarisov et al. 2026): in Gemma-7B layer 0 head 12 alone is critical.
-- $capture varchar = null: a capture's id; null takes every capture
-- $threshold double = 3.5: the least robust_z of a critical head; the default is the usual one (Iglewicz & Hoaglin 1993)
-- $every_head boolean = false: all heads; false takes the critical ones
-- $resamples integer = 2000: bootstrap resamples of documents behind the intervals; 0 leaves the intervals out
with points as (
    select
        capture, layer, head,
        count(*) as n_docs,
        list(coalesce(nll_sum, 'nan'::double) - nll_clean_sum order by doc) as changes,
        list(n_predicted::double order by doc) as predicted
    from head_ablation
    where $capture::varchar is null or capture = $capture
    group by capture, layer, head
),
resamples as (
    select n_docs, resample, bootstrap_weights(resample, n_docs) as times
    from (select distinct n_docs from points), range($resamples::bigint + 1) as numbers(resample)
),
damages as (
    select
        capture, layer, head, n_docs, resample,
        list_dot_product(changes, times) / list_dot_product(predicted, times) as nll_change
    from points
    join resamples using (n_docs)
),
summed_up as (
    select
        capture, layer, head, n_docs,
        nan_to_null(any_value(nll_change) filter (where resample = 0)) as nll_change,
        nan_to_null(interval_lo(nll_change, resample, n_docs)) as nll_change_lo,
        nan_to_null(interval_hi(nll_change, resample, n_docs)) as nll_change_hi
    from damages
    group by capture, layer, head, n_docs
),
-- Heads without a class, or all of them where taxonomy was not run, are a group of their own.
classed as (
    select summed_up.*, class
    from summed_up
    left join (select capture, layer, head, class from taxonomy where rule = 'plurality') using (capture, layer, head)
),
medians as (
    select
        *,
        count(*) over of_class as n_in_class,
        median(nll_change) over of_class as class_median
    from classed
    window of_class as (partition by capture, class)
),
deviations as (
    select *, median(abs(nll_change - class_median)) over (partition by capture, class) as class_deviation
    from medians
),
judged as (
    select
        *,
        robust_z(nll_change, class_median, class_deviation) as z,
        -- Without an interval, as of one document, the z-score alone decides.
        coalesce(z >= $threshold::double and coalesce(nll_change_lo > class_median, true), false) as critical
    from deviations
)
select
    capture,
    model,
    layer,
    head,
    class,
    n_in_class,
    judged.n_docs,
    nll_change,
    nll_change_lo,
    nll_change_hi,
    class_median,
    class_deviation,
    z as robust_z,
    critical
from judged
join captures using (capture)
where $every_head::boolean or critical
order by capture, nll_change desc, layer, head
