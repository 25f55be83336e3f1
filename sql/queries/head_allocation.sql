-- grain: one row per (capture, layer)
-- Does the effective rank say how many heads a layer needs? Heads in proportion to the layers' H*(ε), as many in all as the model has, beside those that there are, and H* of single heads.
-- Published (Zeris 2026): H* as a bound on the heads that a layer needs. It is one of documents and entries rather than of heads: H* far above the heads, and no lower than a null's, bounds nothing. The strategy h_star of `pruning` tries it.
-- $capture varchar = null: a capture's id; null takes every capture
-- $epsilon double = 0.1: the share of the energy that may be left
with chosen as (
    select * from pod_summary
    where protocol = 'exact' and filter_scale is null and abs(epsilon - $epsilon) < 1e-6
        and ($capture::varchar is null or capture = $capture)
    qualify n_snapshots = max(n_snapshots) over (partition by capture)
),
of_layers as (
    select
        capture, layer, n_snapshots,
        any_value(h_star) filter (where field = 'observed' and head is null) as h_star,
        avg(h_star) filter (where field = 'lag_shuffle' and head is null) as lag_shuffle_mean,
        avg(h_star) filter (where field = 'gaussian' and head is null) as gaussian_mean,
        count(h_star) filter (where field = 'observed' and head is not null) as n_heads_measured,
        min(h_star) filter (where field = 'observed' and head is not null) as h_star_head_min,
        avg(h_star) filter (where field = 'observed' and head is not null) as h_star_head_mean,
        max(h_star) filter (where field = 'observed' and head is not null) as h_star_head_max,
        avg(h_star) filter (where field = 'lag_shuffle' and head is not null) as h_star_head_lag_shuffle_mean
    from chosen
    group by capture, layer, n_snapshots
)
select
    capture,
    model,
    layer,
    n_snapshots,
    n_heads,
    h_star,
    h_star / n_heads::double as h_star_per_head,
    'at least the heads needed' as h_star_published,
    n_heads * count(*) over (partition by capture) * h_star::double
    / nullif(sum(h_star) over (partition by capture), 0) as heads_in_proportion,
    n_heads * count(*) over (partition by capture) * lag_shuffle_mean
    / nullif(sum(lag_shuffle_mean) over (partition by capture), 0) as heads_in_proportion_null,
    lag_shuffle_mean,
    gaussian_mean,
    n_heads_measured,
    h_star_head_min,
    h_star_head_mean,
    h_star_head_max,
    h_star_head_lag_shuffle_mean
from of_layers
join captures using (capture)
order by capture, layer
