-- grain: one row per (capture, layer, head, protocol, filter_scale, field, draw)
-- The energy shares of a spectrum sum to 1 and follow from its eigenvalues, or none is defined; the eigenvalues sum to total_energy.
-- $everything boolean = false: all rows checked, instead of those that break it
with spectra as (
    select
        capture, layer, head, protocol, filter_scale, field, draw,
        sum(eigenvalue) as total,
        sum(energy_share) as shares,
        max(cumulative) as last,
        count(energy_share) + count(cumulative) as defined
    from pod_spectrum
    group by capture, layer, head, protocol, filter_scale, field, draw
),
wholes as (
    select
        capture, layer, head, protocol, filter_scale, field, draw,
        arg_max(total_energy, n_snapshots) as total_energy
    from pod_summary
    group by capture, layer, head, protocol, filter_scale, field, draw
),
measured as (
    select
        s.capture, s.layer, s.head, s.protocol, s.filter_scale, s.field, s.draw,
        case
            when total = 0 then defined + coalesce(total_energy, 1)
            else greatest(abs(shares - 1), abs(last - 1), abs(total_energy / total - 1))
        end as error,
        1e-9 as tolerance
    from spectra s
    left join wholes w
        on w.capture = s.capture and w.layer = s.layer and w.head is not distinct from s.head
        and w.protocol = s.protocol and w.filter_scale is not distinct from s.filter_scale
        and w.field = s.field and w.draw = s.draw
)
select * from measured where $everything or not coalesce(error <= tolerance, false)
