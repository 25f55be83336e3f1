-- grain: one row per (capture, strategy, retention)
-- What does it cost to zero whole heads, by the strategy that says which? Change of the loss per retention; random is the mean of its seeds, with their standard deviation.
-- No figure is published beside which these can be set.
-- $capture varchar = null: a capture's id; null takes every capture
-- $strategy varchar = null: a strategy, such as taxonomy; null takes every strategy
-- $resamples integer = 2000: bootstrap resamples of documents behind the intervals; 0 leaves the intervals out
with chosen as (
    select * from pruning
    where ($capture::varchar is null or capture = $capture) and ($strategy::varchar is null or strategy = $strategy)
),
-- Documents are the same for all seeds, so the mean loss over seeds is that of the documents' means.
of_documents as (
    select
        capture, strategy, retention, doc,
        list_avg(list(coalesce(nll_sum, 'nan'::double) order by seed)) as nll_sum,
        any_value(nll_clean_sum) as nll_clean_sum,
        any_value(n_predicted) as n_predicted
    from chosen
    group by capture, strategy, retention, doc
),
of_seeds as (
    select
        capture, strategy, retention, seed,
        any_value(heads_kept) as heads_kept,
        sum(coalesce(nll_sum, 'nan'::double)) / sum(n_predicted) as nll
    from chosen
    group by capture, strategy, retention, seed
),
seeds as (
    select
        capture, strategy, retention,
        count(*) as n_seeds,
        any_value(heads_kept) as heads_kept,
        case when count(*) > 1 then stddev_samp(nll) end as nll_seeds_sd
    from of_seeds
    group by capture, strategy, retention
),
points as (
    select
        capture, strategy, retention,
        count(*) as n_docs,
        list(nll_sum order by doc) as nll_sums,
        list(nll_clean_sum order by doc) as clean_sums,
        list(n_predicted::double order by doc) as predicted
    from of_documents
    group by capture, strategy, retention
),
resamples as (
    select n_docs, resample, bootstrap_weights(resample, n_docs) as times
    from (select distinct n_docs from points), range($resamples::bigint + 1) as numbers(resample)
),
damages as (
    select
        capture, strategy, retention, n_docs, resample,
        list_dot_product(nll_sums, times) / list_dot_product(predicted, times) as nll,
        list_dot_product(clean_sums, times) / list_dot_product(predicted, times) as clean
    from points
    join resamples using (n_docs)
),
summed_up as (
    select
        capture, strategy, retention, n_docs,
        any_value(clean) filter (where resample = 0) as clean,
        any_value(nll - clean) filter (where resample = 0) as nll_change,
        interval_lo(nll - clean, resample, n_docs) as nll_change_lo,
        interval_hi(nll - clean, resample, n_docs) as nll_change_hi,
        any_value(exp(nll) - exp(clean)) filter (where resample = 0) as perplexity_change,
        interval_lo(exp(nll) - exp(clean), resample, n_docs) as perplexity_change_lo,
        interval_hi(exp(nll) - exp(clean), resample, n_docs) as perplexity_change_hi
    from damages
    group by capture, strategy, retention, n_docs
)
select
    capture,
    model,
    strategy,
    retention,
    heads_kept,
    n_seeds,
    summed_up.n_docs,
    nan_to_null(nll_change) as nll_change,
    nan_to_null(nll_change_lo) as nll_change_lo,
    nan_to_null(nll_change_hi) as nll_change_hi,
    nan_to_null(nll_seeds_sd) as nll_change_seeds_sd,
    nan_to_null(perplexity_change) as perplexity_change,
    nan_to_null(perplexity_change_lo) as perplexity_change_lo,
    nan_to_null(perplexity_change_hi) as perplexity_change_hi,
    exp(clean) as perplexity_clean
from summed_up
join seeds using (capture, strategy, retention)
join captures using (capture)
order by capture, list_position(strategy_order(), strategy), retention desc
