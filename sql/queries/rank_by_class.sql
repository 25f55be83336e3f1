-- grain: one row per (capture, layer)
-- Do layers of high effective rank have other heads? H*(ε) of a layer's mean field, less its null, against the shares of its head classes, with rank correlations over layers.
-- No figure is published for these together. Correlations are of Spearman's kind over the layers of a capture, NULL with fewer than four layers.
-- $capture varchar = null: a capture's id; null takes every capture
-- $rule varchar = "plurality": the rule that classes heads: plurality, majority or final_query
-- $epsilon double = 0.1: the share of the energy that may be left
with ranks as (
    select
        capture, layer, n_snapshots,
        any_value(h_star) filter (where field = 'observed') as h_star,
        any_value(saturated) filter (where field = 'observed') as saturated,
        any_value(beta) filter (where field = 'observed') as beta,
        avg(h_star) filter (where field = 'lag_shuffle') as lag_shuffle_mean,
        avg(h_star) filter (where field = 'gaussian') as gaussian_mean
    from pod_summary
    where protocol = 'exact' and filter_scale is null and head is null and abs(epsilon - $epsilon) < 1e-6
        and ($capture::varchar is null or capture = $capture)
    group by capture, layer, n_snapshots
    qualify n_snapshots = max(n_snapshots) over (partition by capture)
),
classes as (
    select
        capture, layer,
        count(*) as n_classed,
        count(*) filter (where class = 'retriever') as n_retriever,
        count(*) filter (where class = 'mixer') as n_mixer,
        count(*) filter (where class = 'reset') as n_reset,
        avg(share_self::double) as share_self_mean,
        avg(share_sink::double) as share_sink_mean,
        avg(share_other::double) as share_other_mean
    from taxonomy
    where rule = $rule
    group by capture, layer
),
joined as (
    select *, h_star - lag_shuffle_mean as h_star_above_null
    from ranks
    join classes using (capture, layer)
),
-- Ranks with ties at their mean.
placed as (
    select
        *,
        rank() over (partition by capture order by h_star)
        + (count(*) over (partition by capture, h_star) - 1) / 2.0 as rank_h_star,
        rank() over (partition by capture order by share_self_mean)
        + (count(*) over (partition by capture, share_self_mean) - 1) / 2.0 as rank_self,
        rank() over (partition by capture order by share_sink_mean)
        + (count(*) over (partition by capture, share_sink_mean) - 1) / 2.0 as rank_sink,
        rank() over (partition by capture order by share_other_mean)
        + (count(*) over (partition by capture, share_other_mean) - 1) / 2.0 as rank_other
    from joined
),
correlations as (
    select
        capture,
        nan_to_null(corr(rank_h_star, rank_self)) as h_star_self_correlation,
        nan_to_null(corr(rank_h_star, rank_sink)) as h_star_sink_correlation,
        nan_to_null(corr(rank_h_star, rank_other)) as h_star_other_correlation
    from placed
    group by capture
    having count(*) >= 4
)
select
    capture,
    model,
    layer,
    n_snapshots,
    h_star,
    saturated,
    lag_shuffle_mean,
    gaussian_mean,
    h_star_above_null,
    beta,
    n_classed as n_heads,
    n_retriever,
    n_mixer,
    n_reset,
    share_self_mean,
    share_sink_mean,
    share_other_mean,
    h_star_self_correlation,
    h_star_sink_correlation,
    h_star_other_correlation
from placed
left join correlations using (capture)
join captures using (capture)
order by capture, layer
