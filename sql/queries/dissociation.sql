-- grain: one row per (capture, protocol, first_token, layers, delta_kind, delta)
-- Is the loss hurt more by turning the residual stream than by lengthening it? Change of the loss by arm, their ratio and difference, how even attention becomes, and the fall of accuracy on minimal pairs, per δ and norm type.
-- Published (Vardhan & Teja 2026; absolute δ, by their protocol): a LayerNorm model (Pythia-410M), and an RMSNorm model (TinyLlama-1.1B).
-- $capture varchar = null: a capture's id; null takes every capture
-- $protocol varchar = null: exact or published; null takes both
-- $first_token varchar = null: include or exclude; null takes both
-- $layers varchar = null: the layers moved together, such as 10-19; null takes every set
-- $pair_noise varchar = "shared": how the sentences of a minimal pair share their noise: shared, independent or published
-- $resamples integer = 2000: bootstrap resamples of documents behind the intervals; 0 leaves the intervals out
with chosen as (
    select * from perturbation
    where ($capture::varchar is null or capture = $capture) and ($protocol::varchar is null or protocol = $protocol)
        and ($first_token::varchar is null or first_token = $first_token)
        and ($layers::varchar is null or layers = $layers)
),
-- Documents are the same for all seeds, so the mean change over seeds is that of the documents' means.
of_documents as (
    select
        capture, protocol, first_token, layers, delta_kind, delta, doc, arm,
        list_avg(list(coalesce(nll_sum - nll_clean_sum, 'nan'::double) order by seed)) as change,
        list_avg(list(coalesce(entropy - entropy_clean, 'nan'::float)::double order by seed)) as entropy_change,
        any_value(n_predicted)::double as n_predicted
    from chosen
    group by capture, protocol, first_token, layers, delta_kind, delta, doc, arm
),
of_arms as (
    select
        capture, protocol, first_token, layers, delta_kind, delta, doc,
        coalesce(any_value(change) filter (where arm = 'magnitude'), 'nan'::double) as magnitude,
        coalesce(any_value(change) filter (where arm = 'angle'), 'nan'::double) as angle,
        any_value(entropy_change) filter (where arm = 'magnitude') as entropy_magnitude,
        any_value(entropy_change) filter (where arm = 'angle') as entropy_angle,
        any_value(n_predicted) as n_predicted
    from of_documents
    group by capture, protocol, first_token, layers, delta_kind, delta, doc
),
points as (
    select
        capture, protocol, first_token, layers, delta_kind, delta,
        count(*) as n_docs,
        list(magnitude order by doc) as magnitudes,
        list(angle order by doc) as angles,
        list(n_predicted order by doc) as predicted,
        list(magnitude / n_predicted order by doc) as magnitude_means,
        list(angle / n_predicted order by doc) as angle_means,
        list_avg(list(entropy_magnitude order by doc)) as entropy_change_magnitude,
        list_avg(list(entropy_angle order by doc)) as entropy_change_angle,
        count(*) filter (where angle > magnitude) / count(*) as docs_angle_larger_share
    from of_arms
    group by capture, protocol, first_token, layers, delta_kind, delta
),
of_seeds as (
    select
        capture, protocol, first_token, layers, delta_kind, delta, seed,
        sum(nll_sum - nll_clean_sum) filter (where arm = 'magnitude') as magnitude,
        sum(nll_sum - nll_clean_sum) filter (where arm = 'angle') as angle,
        count(*) filter (where flagged) as n_flagged,
        count(*) as n_rows
    from chosen
    group by capture, protocol, first_token, layers, delta_kind, delta, seed
),
seeds as (
    select
        capture, protocol, first_token, layers, delta_kind, delta,
        count(*) as n_seeds,
        count(*) filter (where angle > magnitude) as seeds_angle_larger,
        sum(n_flagged) / sum(n_rows) as flagged_share
    from of_seeds
    group by capture, protocol, first_token, layers, delta_kind, delta
),
resamples as (
    select n_docs, resample, bootstrap_weights(resample, n_docs) as times
    from (select distinct n_docs from points), range($resamples::bigint + 1) as numbers(resample)
),
changes as (
    select
        capture, protocol, first_token, layers, delta_kind, delta, n_docs, resample,
        list_dot_product(magnitudes, times) / list_dot_product(predicted, times) as magnitude,
        list_dot_product(angles, times) / list_dot_product(predicted, times) as angle
    from points
    join resamples using (n_docs)
),
summed_up as (
    select
        capture, protocol, first_token, layers, delta_kind, delta, n_docs,
        any_value(magnitude) filter (where resample = 0) as magnitude,
        interval_lo(magnitude, resample, n_docs) as magnitude_lo,
        interval_hi(magnitude, resample, n_docs) as magnitude_hi,
        any_value(angle) filter (where resample = 0) as angle,
        interval_lo(angle, resample, n_docs) as angle_lo,
        interval_hi(angle, resample, n_docs) as angle_hi,
        any_value(damage_ratio(angle, magnitude)) filter (where resample = 0) as ratio,
        interval_lo(damage_ratio(angle, magnitude), resample, n_docs) as ratio_lo,
        interval_hi(damage_ratio(angle, magnitude), resample, n_docs) as ratio_hi,
        any_value(angle - magnitude) filter (where resample = 0) as difference,
        interval_lo(angle - magnitude, resample, n_docs) as difference_lo,
        interval_hi(angle - magnitude, resample, n_docs) as difference_hi
    from changes
    group by capture, protocol, first_token, layers, delta_kind, delta, n_docs
),
-- Of minimal pairs, draws are one condition: what a pair gets of it is their mean.
of_pairs as (
    select
        capture, protocol, first_token, layers, delta_kind, delta, arm, task, item,
        avg(correct::integer) as correct
    from minimal_pairs
    where arm = 'none' or pair_noise = $pair_noise
    group by all
),
beside_clean as (
    select o.*, c.correct as clean
    from of_pairs as o
    join of_pairs as c on c.capture = o.capture and c.task = o.task and c.item = o.item and c.arm = 'none'
    where o.arm <> 'none'
),
syntax as (
    select
        capture, protocol, first_token, layers, delta_kind, delta,
        count(*) filter (where arm = 'magnitude') as n_pairs,
        avg(clean) as accuracy_clean,
        avg(correct) filter (where arm = 'magnitude') as accuracy_magnitude,
        avg(correct) filter (where arm = 'angle') as accuracy_angle
    from beside_clean
    group by all
),
published_syntax as (
    select * from (
        values (5, 0.691, 0.879), (10, 0.560, 0.771), (15, 0.535, 0.674)
    ) as figures(delta_pairs, pairs_magnitude_published, pairs_angle_published)
),
published as (
    select * from (
        values
        ('layernorm', 1, 0.009, 0.368, 42.9), ('layernorm', 2, 0.042, 0.983, 23.4), ('layernorm', 5, 0.700, 3.757, 5.4),
        ('layernorm', 10, 3.262, 7.061, 2.2), ('layernorm', 15, 4.600, 7.718, 1.7), ('layernorm', 20, 5.433, 7.750, 1.4),
        ('rmsnorm', 1, 0.119, 0.645, 5.4), ('rmsnorm', 2, 0.808, 3.823, 4.7), ('rmsnorm', 5, 5.760, 4.956, 0.9)
    ) as figures(figures_norm, delta_published, magnitude_published, angle_published, ratio_published)
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
    summed_up.n_docs,
    n_seeds,
    nan_to_null(magnitude) as nll_change_magnitude,
    nan_to_null(magnitude_lo) as nll_change_magnitude_lo,
    nan_to_null(magnitude_hi) as nll_change_magnitude_hi,
    nan_to_null(angle) as nll_change_angle,
    nan_to_null(angle_lo) as nll_change_angle_lo,
    nan_to_null(angle_hi) as nll_change_angle_hi,
    nan_to_null(ratio) as ratio,
    case when nan_to_null(ratio) is not null then nan_to_null(ratio_lo) end as ratio_lo,
    case when nan_to_null(ratio) is not null then nan_to_null(ratio_hi) end as ratio_hi,
    nan_to_null(difference) as difference,
    nan_to_null(difference_lo) as difference_lo,
    nan_to_null(difference_hi) as difference_hi,
    -- Of the documents' means, with the pooled deviation of both arms; undefined for one document.
    nan_to_null(
        (list_avg(angle_means) - list_avg(magnitude_means))
        / nullif(sqrt((list_var_samp(angle_means) + list_var_samp(magnitude_means)) / 2), 0)
    ) as cohens_d,
    docs_angle_larger_share,
    seeds_angle_larger,
    nan_to_null(points.entropy_change_magnitude) as entropy_change_magnitude,
    nan_to_null(points.entropy_change_angle) as entropy_change_angle,
    flagged_share,
    case when magnitude_published is not null
        then case norm when 'layernorm' then 'Pythia-410M' else 'TinyLlama-1.1B' end
    end as model_published,
    magnitude_published::double as magnitude_published,
    angle_published::double as angle_published,
    ratio_published::double as ratio_published,
    n_pairs,
    accuracy_clean,
    accuracy_magnitude,
    accuracy_angle,
    accuracy_angle - accuracy_magnitude as accuracy_difference,
    pairs_magnitude_published::double as accuracy_magnitude_published,
    pairs_angle_published::double as accuracy_angle_published
from summed_up
join points using (capture, protocol, first_token, layers, delta_kind, delta)
join seeds using (capture, protocol, first_token, layers, delta_kind, delta)
join captures using (capture)
left join published
    on figures_norm = norm and delta_kind = 'absolute' and delta_published = round(delta::double, 6)
left join syntax using (capture, protocol, first_token, layers, delta_kind, delta)
left join published_syntax
    on norm = 'layernorm' and delta_kind = 'absolute' and delta_pairs = round(delta::double, 6)
order by capture, protocol, first_token, layers, delta_kind, delta
