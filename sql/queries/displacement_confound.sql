-- grain: one row per (capture, protocol, arm, layers, delta_kind, delta)
-- Does one token of huge norm take the perturbation? The share of all displacement that the longest token of each sampled document and layer takes, how far a typical token is moved, and how the loss changes with the first token moved and left alone.
-- No figure is published: the authors' code matches the mean displacement over a document's tokens, so what a typical token was moved by is not known.
-- $capture varchar = null: a capture's id; null takes every capture
-- $protocol varchar = null: exact or published; null takes both
-- $layers varchar = null: the layers moved together, such as 10-19; null takes every set
-- $resamples integer = 2000: bootstrap resamples of documents behind the intervals; 0 leaves the intervals out
with of_layers as (
    select
        capture, protocol, arm, layers, delta_kind, delta, first_token, seed, doc, layer,
        list_sum(list(displacement::double order by position)) as total,
        arg_max(displacement::double, norm) as of_longest,
        quantile_cont(displacement::double, 0.5) as typical,
        max(norm::double) / nullif(quantile_cont(norm::double, 0.5), 0) as norm_ratio
    from displacement
    where ($capture::varchar is null or capture = $capture) and ($protocol::varchar is null or protocol = $protocol)
        and ($layers::varchar is null or layers = $layers)
    group by capture, protocol, arm, layers, delta_kind, delta, first_token, seed, doc, layer
),
tokens_moved as (
    select
        capture, protocol, arm, layers, delta_kind, delta,
        count(distinct doc) as n_docs_sampled,
        max(norm_ratio) as longest_to_median,
        list_avg(list(of_longest / total order by seed, doc, layer) filter (where first_token = 'include' and total > 0))
            as longest_share_include,
        list_avg(list(of_longest / total order by seed, doc, layer) filter (where first_token = 'exclude' and total > 0))
            as longest_share_exclude,
        list_avg(list(typical order by seed, doc, layer) filter (where first_token = 'include')) as typical_include,
        list_avg(list(typical order by seed, doc, layer) filter (where first_token = 'exclude')) as typical_exclude
    from of_layers
    group by capture, protocol, arm, layers, delta_kind, delta
),
-- Documents are the same for all seeds, so the mean change over seeds is that of the documents' means.
of_documents as (
    select
        capture, protocol, arm, layers, delta_kind, delta, doc, first_token,
        list_avg(list(coalesce(nll_sum - nll_clean_sum, 'nan'::double) order by seed)) as change,
        any_value(n_predicted)::double as n_predicted
    from perturbation
    where ($capture::varchar is null or capture = $capture) and ($protocol::varchar is null or protocol = $protocol)
        and ($layers::varchar is null or layers = $layers)
    group by capture, protocol, arm, layers, delta_kind, delta, doc, first_token
),
of_both as (
    select
        capture, protocol, arm, layers, delta_kind, delta, doc,
        coalesce(any_value(change) filter (where first_token = 'include'), 'nan'::double) as included,
        coalesce(any_value(change) filter (where first_token = 'exclude'), 'nan'::double) as excluded,
        any_value(n_predicted) as n_predicted
    from of_documents
    group by capture, protocol, arm, layers, delta_kind, delta, doc
),
points as (
    select
        capture, protocol, arm, layers, delta_kind, delta,
        count(*) as n_docs,
        list(included order by doc) as included_sums,
        list(excluded order by doc) as excluded_sums,
        list(n_predicted order by doc) as predicted
    from of_both
    group by capture, protocol, arm, layers, delta_kind, delta
),
resamples as (
    select n_docs, resample, bootstrap_weights(resample, n_docs) as times
    from (select distinct n_docs from points), range($resamples::bigint + 1) as numbers(resample)
),
changes as (
    select
        capture, protocol, arm, layers, delta_kind, delta, n_docs, resample,
        list_dot_product(included_sums, times) / list_dot_product(predicted, times) as included,
        list_dot_product(excluded_sums, times) / list_dot_product(predicted, times) as excluded
    from points
    join resamples using (n_docs)
),
summed_up as (
    select
        capture, protocol, arm, layers, delta_kind, delta, n_docs,
        any_value(included) filter (where resample = 0) as included,
        interval_lo(included, resample, n_docs) as included_lo,
        interval_hi(included, resample, n_docs) as included_hi,
        any_value(excluded) filter (where resample = 0) as excluded,
        interval_lo(excluded, resample, n_docs) as excluded_lo,
        interval_hi(excluded, resample, n_docs) as excluded_hi,
        any_value(included - excluded) filter (where resample = 0) as difference,
        interval_lo(included - excluded, resample, n_docs) as difference_lo,
        interval_hi(included - excluded, resample, n_docs) as difference_hi
    from changes
    group by capture, protocol, arm, layers, delta_kind, delta, n_docs
)
select
    capture,
    model,
    norm,
    protocol,
    arm,
    layers,
    delta_kind,
    delta,
    summed_up.n_docs,
    n_docs_sampled,
    longest_to_median,
    longest_share_include,
    longest_share_exclude,
    typical_include as displacement_typical_include,
    typical_exclude as displacement_typical_exclude,
    nan_to_null(included) as nll_change_include,
    nan_to_null(included_lo) as nll_change_include_lo,
    nan_to_null(included_hi) as nll_change_include_hi,
    nan_to_null(excluded) as nll_change_exclude,
    nan_to_null(excluded_lo) as nll_change_exclude_lo,
    nan_to_null(excluded_hi) as nll_change_exclude_hi,
    nan_to_null(difference) as difference,
    nan_to_null(difference_lo) as difference_lo,
    nan_to_null(difference_hi) as difference_hi
from summed_up
left join tokens_moved using (capture, protocol, arm, layers, delta_kind, delta)
join captures using (capture)
order by capture, protocol, arm, layers, delta_kind, delta
