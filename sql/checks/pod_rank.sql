-- grain: one row per (capture, layer, head, protocol, filter_scale, field, draw, n_snapshots, epsilon)
-- H* is in 1 … N − 1 (published: one more), missing exactly where there is no energy, and saturated says whether it is at least 0.9 (N − 1); t_spec is 1/β; draw is 0 where nothing is drawn.
-- $everything boolean = false: all rows checked, instead of those that break it
with measured as (
    select
        capture, layer, head, protocol, filter_scale, field, draw, n_snapshots, epsilon,
        case
            when (field = 'observed' and draw <> 0) or draw < 0 then 1
            when total_energy = 0 then (h_star is not null or saturated)::integer
            when (beta is null) <> (t_spec is null) then 1
            when abs(beta * t_spec - 1) > 1e-5 then 1
            else (
                not coalesce(
                    h_star - (protocol = 'published')::integer between 1 and n_snapshots - 1
                    and saturated = (h_star - (protocol = 'published')::integer >= 0.9 * (n_snapshots - 1)),
                    false
                )
            )::integer
        end as error,
        0 as tolerance
    from pod_summary
)
select * from measured where $everything or not coalesce(error <= tolerance, false)
