-- grain: one row per (capture, layer, n_snapshots, epsilon)
-- What did the printed numbers measure? The published protocol beside the exact one on the same ensemble: dominant scales, effective rank and spectral time, with the mean over the filters of each.
-- Published (Zeris 2026): H*(0.10) > 150 in layers 1 and 2 and about 91 in layers 3 to 6 at N = 150, T_spec about 1.0 in layers 1 and 2. There the lag looks ahead, where a causal mask leaves the diagonal alone; the filter is a low-pass; T_spec = 1 is what stands where nothing could be fitted, and H* is one too large.
-- $capture varchar = null: a capture's id; null takes every capture
-- $epsilon double = 0.1: the share of the energy that may be left; null takes every one
with chosen as (
    select * from pod_summary
    where field = 'observed' and head is null
        and ($capture::varchar is null or capture = $capture)
        and ($epsilon::double is null or abs(epsilon - $epsilon) < 1e-6)
),
scales as (
    select
        capture, layer,
        list(round(filter_scale::double, 2) order by filter_scale) filter (where protocol = 'exact') as scales_exact,
        list(round(filter_scale::double, 2) order by filter_scale) filter (where protocol = 'published') as scales_published
    from (select distinct capture, layer, protocol, filter_scale from chosen where filter_scale is not null)
    group by capture, layer
),
measured as (
    select
        capture, layer, n_snapshots, epsilon,
        any_value(h_star) filter (where protocol = 'exact' and filter_scale is null) as h_star_exact,
        any_value(h_star) filter (where protocol = 'published' and filter_scale is null) as h_star_published,
        avg(h_star) filter (where protocol = 'exact' and filter_scale is not null) as h_star_filtered_exact_mean,
        avg(h_star) filter (where protocol = 'published' and filter_scale is not null) as h_star_filtered_published_mean,
        any_value(t_spec) filter (where protocol = 'exact' and filter_scale is null) as t_spec_exact,
        any_value(t_spec) filter (where protocol = 'published' and filter_scale is null) as t_spec_published,
        avg(t_spec) filter (where protocol = 'exact' and filter_scale is not null) as t_spec_filtered_exact_mean,
        avg(t_spec) filter (where protocol = 'published' and filter_scale is not null) as t_spec_filtered_published_mean,
        any_value(beta_r2) filter (where protocol = 'exact' and filter_scale is null) as beta_r2,
        bool_or(saturated) filter (where protocol = 'exact' and filter_scale is null) as saturated
    from chosen
    group by capture, layer, n_snapshots, epsilon
    having count(distinct protocol) = 2
),
-- Where the published signal has the same energy at every scale, its four largest are chosen by what the window cuts off.
energies as (
    select
        capture, layer,
        max(energy::double) filter (where protocol = 'published')
        / nullif(min(energy::double) filter (where protocol = 'published'), 0) as energy_ratio_published,
        max(energy::double) filter (where protocol = 'exact')
        / nullif(min(energy::double) filter (where protocol = 'exact'), 0) as energy_ratio_exact
    from scalogram
    where field = 'observed' and head is null
    group by capture, layer
)
select
    capture,
    model,
    layer,
    n_snapshots,
    epsilon,
    h_star_exact,
    h_star_published,
    h_star_filtered_exact_mean,
    h_star_filtered_published_mean,
    case
        when n_layers = 6 and abs(epsilon - 0.1) < 1e-6
            then case when layer < 2 then '> 150 at N = 150' else 'about 91 at N = 150' end
    end as h_star_printed,
    saturated,
    t_spec_exact,
    t_spec_published,
    t_spec_filtered_exact_mean,
    t_spec_filtered_published_mean,
    case when n_layers = 6 and layer < 2 then 1.0 end as t_spec_printed,
    beta_r2,
    scales_exact,
    scales_published,
    energy_ratio_exact,
    energy_ratio_published
from measured
left join scales using (capture, layer)
left join energies using (capture, layer)
join captures using (capture)
order by capture, layer, epsilon desc, n_snapshots
