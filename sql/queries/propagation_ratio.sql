-- grain: one row per (capture, protocol, first_token, layers, delta_kind, delta, layer)
-- Does a turned residual stream come to lie farther off than a lengthened one? Mean distance from the clean run at every layer from the first perturbed one on, by arm, its growth, and the ratio of the arms.
-- Published (Vardhan & Teja 2026, Pythia-410M, a LayerNorm model; absolute δ, last layer): 123.8 (angle) and 38.9 (magnitude), 3.18 times.
-- $capture varchar = null: a capture's id; null takes every capture
-- $layers varchar = null: the layers moved together, such as 10-19; null takes every set
-- $resamples integer = 2000: bootstrap resamples of documents behind the intervals; 0 leaves the intervals out
with of_documents as (
    select
        capture, protocol, first_token, layers, delta_kind, delta, layer, doc, arm,
        list_avg(list(coalesce(distance_mean, 'nan'::float)::double order by seed)) as distance,
        list_avg(list(coalesce(distance_first_token, 'nan'::float)::double order by seed)) as first_token_distance,
        any_value(n_tokens)::double as n_tokens
    from propagation
    where ($capture::varchar is null or capture = $capture) and ($layers::varchar is null or layers = $layers)
    group by capture, protocol, first_token, layers, delta_kind, delta, layer, doc, arm
),
of_arms as (
    select
        capture, protocol, first_token, layers, delta_kind, delta, layer, doc,
        coalesce(any_value(distance) filter (where arm = 'magnitude'), 'nan'::double) as magnitude,
        coalesce(any_value(distance) filter (where arm = 'angle'), 'nan'::double) as angle,
        coalesce(any_value(first_token_distance) filter (where arm = 'magnitude'), 'nan'::double) as first_magnitude,
        coalesce(any_value(first_token_distance) filter (where arm = 'angle'), 'nan'::double) as first_angle,
        any_value(n_tokens) as n_tokens
    from of_documents
    group by capture, protocol, first_token, layers, delta_kind, delta, layer, doc
),
points as (
    select
        capture, protocol, first_token, layers, delta_kind, delta, layer,
        count(*) as n_docs,
        list(magnitude * n_tokens order by doc) as magnitudes,
        list(angle * n_tokens order by doc) as angles,
        list(n_tokens order by doc) as n_tokens,
        list_avg(list(first_magnitude order by doc)) as first_magnitude,
        list_avg(list(first_angle order by doc)) as first_angle
    from of_arms
    group by capture, protocol, first_token, layers, delta_kind, delta, layer
),
resamples as (
    select n_docs, resample, bootstrap_weights(resample, n_docs) as times
    from (select distinct n_docs from points), range($resamples::bigint + 1) as numbers(resample)
),
means as (
    select
        capture, protocol, first_token, layers, delta_kind, delta, layer, n_docs, resample,
        list_dot_product(magnitudes, times) / list_dot_product(n_tokens, times) as magnitude,
        list_dot_product(angles, times) / list_dot_product(n_tokens, times) as angle
    from points
    join resamples using (n_docs)
),
summed_up as (
    select
        capture, protocol, first_token, layers, delta_kind, delta, layer, n_docs,
        any_value(magnitude) filter (where resample = 0) as magnitude,
        any_value(angle) filter (where resample = 0) as angle,
        any_value(damage_ratio(angle, magnitude)) filter (where resample = 0) as ratio,
        interval_lo(damage_ratio(angle, magnitude), resample, n_docs) as ratio_lo,
        interval_hi(damage_ratio(angle, magnitude), resample, n_docs) as ratio_hi
    from means
    group by capture, protocol, first_token, layers, delta_kind, delta, layer, n_docs
),
grown as (
    select
        *,
        damage_ratio(magnitude, first_value(magnitude) over along) as growth_magnitude,
        damage_ratio(angle, first_value(angle) over along) as growth_angle
    from summed_up
    window along as (partition by capture, protocol, first_token, layers, delta_kind, delta order by layer)
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
    layer,
    grown.n_docs,
    nan_to_null(magnitude) as distance_magnitude,
    nan_to_null(angle) as distance_angle,
    nan_to_null(growth_magnitude) as growth_magnitude,
    nan_to_null(growth_angle) as growth_angle,
    nan_to_null(ratio) as ratio,
    case when nan_to_null(ratio) is not null then nan_to_null(ratio_lo) end as ratio_lo,
    case when nan_to_null(ratio) is not null then nan_to_null(ratio_hi) end as ratio_hi,
    nan_to_null(first_magnitude) as distance_first_token_magnitude,
    nan_to_null(first_angle) as distance_first_token_angle,
    case when layer = n_layers - 1 and delta_kind = 'absolute' and norm = 'layernorm' then 3.18::double end as ratio_published
from grown
join points using (capture, protocol, first_token, layers, delta_kind, delta, layer)
join captures using (capture)
order by capture, protocol, first_token, layers, delta_kind, delta, layer
