-- grain: one row per (capture, layers)
-- Does the model need the first token's values? Change of the loss with them zeroed in one layer, or in all layers.
-- No figure is published for this change.
-- $capture varchar = null: a capture's id; null takes every capture
-- $layers varchar = null: the layers in which they are zeroed, such as all or 3; null takes every row
-- $resamples integer = 2000: bootstrap resamples of documents behind the intervals; 0 leaves the intervals out
with points as (
    select
        capture, layers,
        count(*) as n_docs,
        list(coalesce(nll_sum, 'nan'::double) order by doc) as nll_sums,
        list(nll_clean_sum order by doc) as clean_sums,
        list(n_predicted::double order by doc) as predicted
    from sink_removal
    where ($capture::varchar is null or capture = $capture) and ($layers::varchar is null or layers = $layers)
    group by capture, layers
),
resamples as (
    select n_docs, resample, bootstrap_weights(resample, n_docs) as times
    from (select distinct n_docs from points), range($resamples::bigint + 1) as numbers(resample)
),
damages as (
    select
        capture, layers, n_docs, resample,
        list_dot_product(nll_sums, times) / list_dot_product(predicted, times) as nll,
        list_dot_product(clean_sums, times) / list_dot_product(predicted, times) as clean
    from points
    join resamples using (n_docs)
),
summed_up as (
    select
        capture, layers, n_docs,
        any_value(clean) filter (where resample = 0) as clean,
        any_value(nll - clean) filter (where resample = 0) as nll_change,
        interval_lo(nll - clean, resample, n_docs) as nll_change_lo,
        interval_hi(nll - clean, resample, n_docs) as nll_change_hi,
        any_value(exp(nll) - exp(clean)) filter (where resample = 0) as perplexity_change,
        interval_lo(exp(nll) - exp(clean), resample, n_docs) as perplexity_change_lo,
        interval_hi(exp(nll) - exp(clean), resample, n_docs) as perplexity_change_hi
    from damages
    group by capture, layers, n_docs
)
select
    capture,
    model,
    layers,
    summed_up.n_docs,
    nan_to_null(nll_change) as nll_change,
    nan_to_null(nll_change_lo) as nll_change_lo,
    nan_to_null(nll_change_hi) as nll_change_hi,
    nan_to_null(perplexity_change) as perplexity_change,
    nan_to_null(perplexity_change_lo) as perplexity_change_lo,
    nan_to_null(perplexity_change_hi) as perplexity_change_hi,
    exp(clean) as perplexity_clean
from summed_up
join captures using (capture)
order by capture, try_cast(layers as integer) nulls last, layers
