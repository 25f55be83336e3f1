-- grain: one row per (capture, layer, head, filter_scale, n_snapshots, epsilon)
-- How many modes hold all but ε of a layer's fluctuations, and how many would noise of the same size take? H*(ε) as the ensemble grows, beside two nulls with z-scores, NULL below three draws.
-- Published (Zeris 2026) at N = 150, ε = 0.10: more than 150 in layers 1 and 2, about 91 in layers 3 to 6. H* cannot exceed N − 1: where it is saturated, or within a few z of a null, the number says nothing of the model.
-- $capture varchar = null: a capture's id; null takes every capture
-- $layer integer = null: a layer, counted from 0; null takes every layer
-- $epsilon double = 0.1: the share of the energy that may be left; null takes every one
-- $whole boolean = false: the whole ensemble alone; false takes its subsamples too
-- $per_head boolean = false: single heads too, where they were asked for; false takes the mean of all heads alone
with chosen as (
    select * from pod_summary
    where protocol = 'exact'
        and ($capture::varchar is null or capture = $capture)
        and ($layer::integer is null or layer = $layer)
        and ($epsilon::double is null or abs(epsilon - $epsilon) < 1e-6)
        and ($per_head or head is null)
    qualify not $whole or n_snapshots = max(n_snapshots) over (partition by capture)
),
nulls as (
    select
        capture, layer, head, filter_scale, n_snapshots, epsilon,
        count(*) filter (where field = 'lag_shuffle') as n_draws,
        avg(h_star) filter (where field = 'lag_shuffle') as lag_shuffle_mean,
        stddev_samp(h_star) filter (where field = 'lag_shuffle') as lag_shuffle_sd,
        avg(h_star) filter (where field = 'gaussian') as gaussian_mean,
        stddev_samp(h_star) filter (where field = 'gaussian') as gaussian_sd,
        avg(beta) filter (where field = 'lag_shuffle') as beta_lag_shuffle_mean,
        stddev_samp(beta) filter (where field = 'lag_shuffle') as beta_lag_shuffle_sd,
        avg(beta) filter (where field = 'gaussian') as beta_gaussian_mean,
        stddev_samp(beta) filter (where field = 'gaussian') as beta_gaussian_sd
    from chosen
    where field <> 'observed'
    group by capture, layer, head, filter_scale, n_snapshots, epsilon
)
select
    o.capture,
    model,
    o.layer,
    o.head,
    o.filter_scale,
    o.n_snapshots,
    o.epsilon,
    h_star,
    saturated,
    n_draws,
    lag_shuffle_mean,
    lag_shuffle_sd,
    rank_z(h_star, lag_shuffle_mean, lag_shuffle_sd, n_draws) as z_lag_shuffle,
    gaussian_mean,
    gaussian_sd,
    rank_z(h_star, gaussian_mean, gaussian_sd, n_draws) as z_gaussian,
    case
        when o.filter_scale is null and o.head is null and abs(o.epsilon - 0.1) < 1e-6 and n_layers = 6
            then case when o.layer < 2 then '> 150 at N = 150' else 'about 91 at N = 150' end
    end as h_star_published,
    beta,
    beta_r2,
    t_spec,
    draws_z(beta, beta_lag_shuffle_mean, beta_lag_shuffle_sd, n_draws) as z_beta_lag_shuffle,
    draws_z(beta, beta_gaussian_mean, beta_gaussian_sd, n_draws) as z_beta_gaussian
from chosen o
left join nulls n
    on n.capture = o.capture and n.layer = o.layer and n.head is not distinct from o.head
    and n.filter_scale is not distinct from o.filter_scale
    and n.n_snapshots = o.n_snapshots and n.epsilon = o.epsilon
join captures on captures.capture = o.capture
where o.field = 'observed'
order by o.capture, o.layer, o.head nulls first, o.filter_scale nulls first, o.epsilon desc, o.n_snapshots
