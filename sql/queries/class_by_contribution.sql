-- grain: one row per (capture, class, token_group)
-- What do the heads of a class contribute, and what are they worth? Factors of contribution weights, weighted by entries, and the mean change of the loss with a head zeroed.
-- No figure is published for these together.
-- $capture varchar = null: a capture's id; null takes every capture
-- $rule varchar = "plurality": the rule that classes heads: plurality, majority or final_query
-- $resamples integer = 2000: bootstrap resamples of documents behind the intervals; 0 leaves the intervals out
with classed as (
    select capture, layer, head, class from taxonomy
    where rule = $rule and ($capture::varchar is null or capture = $capture)
),
sizes as (
    select capture, class, count(*) as n_heads from classed group by capture, class
),
factors as (
    select
        capture, class, token_group,
        sum(n)::bigint as n_entries,
        sum(n * share_alpha::double) / sum(n) filter (where share_alpha is not null) as share_alpha,
        sum(n * share_norm::double) / sum(n) filter (where share_norm is not null) as share_norm,
        sum(n * share_cosine::double) / sum(n) filter (where share_cosine is not null) as share_cosine,
        sum(n * mean_alpha::double) / sum(n) filter (where mean_alpha is not null) as mean_alpha,
        sum(n * mean_relative_norm::double) / sum(n) filter (where mean_relative_norm is not null) as mean_relative_norm,
        sum(n * mean_cosine::double) / sum(n) filter (where mean_cosine is not null) as mean_cosine,
        sum(n * mean_cw::double) / sum(n) filter (where mean_cw is not null) as mean_cw
    from contribution_factors
    join classed using (capture, layer, head)
    group by capture, class, token_group
),
-- The mean over heads of each one's change: documents are the same for all of them.
of_documents as (
    select
        capture, class, doc,
        list_avg(list(coalesce(nll_sum, 'nan'::double) - nll_clean_sum order by layer, head)) as change,
        any_value(n_predicted) as n_predicted
    from head_ablation
    join classed using (capture, layer, head)
    group by capture, class, doc
),
points as (
    select
        capture, class,
        count(*) as n_docs,
        list(change order by doc) as changes,
        list(n_predicted::double order by doc) as predicted
    from of_documents
    group by capture, class
),
resamples as (
    select n_docs, resample, bootstrap_weights(resample, n_docs) as times
    from (select distinct n_docs from points), range($resamples::bigint + 1) as numbers(resample)
),
damages as (
    select
        capture, class, n_docs, resample,
        list_dot_product(changes, times) / list_dot_product(predicted, times) as nll_change
    from points
    join resamples using (n_docs)
),
ablations as (
    select
        capture, class, n_docs,
        nan_to_null(any_value(nll_change) filter (where resample = 0)) as nll_change_mean,
        nan_to_null(interval_lo(nll_change, resample, n_docs)) as nll_change_mean_lo,
        nan_to_null(interval_hi(nll_change, resample, n_docs)) as nll_change_mean_hi
    from damages
    group by capture, class, n_docs
)
select
    capture,
    model,
    class,
    token_group,
    sizes.n_heads,
    n_entries,
    share_alpha,
    share_norm,
    share_cosine,
    mean_alpha,
    mean_relative_norm,
    mean_cosine,
    mean_cw,
    nll_change_mean,
    nll_change_mean_lo,
    nll_change_mean_hi
from sizes
left join factors using (capture, class)
left join ablations using (capture, class)
join captures using (capture)
order by
    capture, list_position(['retriever', 'mixer', 'reset'], class), list_position(['sink', 'self', 'tail'], token_group)
