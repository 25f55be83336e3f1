-- grain: one row per (capture, protocol, first_token, layers, delta_kind, delta, target, repaired_layers, arm)
-- Through what does a perturbation do its damage? The share of it that goes, in percent, when the clean values of a part of some layers are put back; NULL where the damage is below 0.01 nats a token.
-- Published (Vardhan & Teja 2026, Pythia-410M, a LayerNorm model; absolute δ, all perturbed layers): attention output 28.4 % (angle) and 15.2 % (magnitude), norm output 13.7 % and 29.9 %.
-- $capture varchar = null: a capture's id; null takes every capture
-- $target varchar = null: attention_output, attention_weights, norm_output or mlp_output; null takes all
-- $layers varchar = null: the layers moved together, such as 10-19; null takes every set
-- $resamples integer = 2000: bootstrap resamples of documents behind the intervals; 0 leaves the intervals out
with of_documents as (
    -- The mean over seeds first: documents are the same for all of them.
    select
        capture, protocol, first_token, layers, delta_kind, delta, target, repaired_layers, arm, doc,
        list_avg(list(coalesce(nll_perturbed_sum - nll_clean_sum, 'nan'::double) order by seed)) as damage,
        list_avg(list(coalesce(nll_perturbed_sum - nll_repaired_sum, 'nan'::double) order by seed)) as recovered,
        any_value(n_predicted)::double as n_predicted
    from repair
    where ($capture::varchar is null or capture = $capture) and ($target::varchar is null or target = $target)
        and ($layers::varchar is null or layers = $layers)
    group by capture, protocol, first_token, layers, delta_kind, delta, target, repaired_layers, arm, doc
),
points as (
    select
        capture, protocol, first_token, layers, delta_kind, delta, target, repaired_layers, arm,
        count(*) as n_docs,
        count(*) filter (where damage >= 0.01 * n_predicted) as n_docs_damaged,
        quantile_cont(recovery(recovered, damage, n_predicted), 0.5) as recovery_docs_median,
        list(damage order by doc) as damages,
        list(recovered order by doc) as recoveries,
        list(n_predicted order by doc) as predicted
    from of_documents
    group by capture, protocol, first_token, layers, delta_kind, delta, target, repaired_layers, arm
),
resamples as (
    select n_docs, resample, bootstrap_weights(resample, n_docs) as times
    from (select distinct n_docs from points), range($resamples::bigint + 1) as numbers(resample)
),
sums as (
    select
        capture, protocol, first_token, layers, delta_kind, delta, target, repaired_layers, arm, n_docs, resample,
        list_dot_product(damages, times) as damage,
        list_dot_product(recoveries, times) as recovered,
        list_dot_product(predicted, times) as n_predicted
    from points
    join resamples using (n_docs)
),
summed_up as (
    select
        capture, protocol, first_token, layers, delta_kind, delta, target, repaired_layers, arm, n_docs,
        any_value(damage / n_predicted) filter (where resample = 0) as damage,
        any_value(recovery(recovered, damage, n_predicted)) filter (where resample = 0) as recovery,
        interval_lo(recovery(recovered, damage, n_predicted), resample, n_docs) as recovery_lo,
        interval_hi(recovery(recovered, damage, n_predicted), resample, n_docs) as recovery_hi
    from sums
    group by capture, protocol, first_token, layers, delta_kind, delta, target, repaired_layers, arm, n_docs
),
published as (
    select * from (
        values
        ('attention_output', 'angle', 28.4), ('attention_output', 'magnitude', 15.2),
        ('norm_output', 'angle', 13.7), ('norm_output', 'magnitude', 29.9)
    ) as figures(target, arm, recovery_published)
)
select
    capture,
    model,
    norm,
    protocol,
    first_token,
    layers,
    delta_kind,
    delta,
    target,
    repaired_layers,
    arm,
    summed_up.n_docs,
    nan_to_null(damage) as nll_change,
    n_docs_damaged,
    nan_to_null(recovery) as recovery_percent,
    case when nan_to_null(recovery) is not null then nan_to_null(recovery_lo) end as recovery_percent_lo,
    case when nan_to_null(recovery) is not null then nan_to_null(recovery_hi) end as recovery_percent_hi,
    recovery_docs_median as recovery_percent_docs_median,
    case
        when repaired_layers = layers and delta_kind = 'absolute' and norm = 'layernorm' then recovery_published::double
    end as recovery_percent_published
from summed_up
join points using (capture, protocol, first_token, layers, delta_kind, delta, target, repaired_layers, arm)
join captures using (capture)
left join published using (target, arm)
order by capture, protocol, first_token, layers, delta_kind, delta, target, repaired_layers, arm
