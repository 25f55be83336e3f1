-- grain: one row per (capture, layer, head, protocol, filter_scale, epsilon)
-- Theorem 1: what the first modes leave of a field, mean over documents, is the sum of the other eigenvalues, to 1e-6; and it is no more than ε of the energy.
-- $everything boolean = false: all rows checked, instead of those that break it
with reconstructed as (
    select *, h_star - (protocol = 'published')::integer as n_modes from pod_summary
    where field = 'observed' and total_energy > 0
    qualify n_snapshots = max(n_snapshots) over (partition by capture)
),
measured as (
    select
        r.capture, r.layer, r.head, r.protocol, r.filter_scale, r.epsilon,
        greatest(
            abs(any_value(reconstruction_error) - coalesce(sum(eigenvalue) filter (where k > n_modes), 0))
            / greatest(coalesce(sum(eigenvalue) filter (where k > n_modes), 0), 1e-8 * any_value(total_energy)),
            any_value(reconstruction_error) / any_value(total_energy) / r.epsilon - 1
        ) as error,
        1e-6 as tolerance
    from reconstructed r
    left join pod_spectrum s
        on s.capture = r.capture and s.layer = r.layer and s.head is not distinct from r.head
        and s.protocol = r.protocol and s.filter_scale is not distinct from r.filter_scale
        and s.field = 'observed'
    group by r.capture, r.layer, r.head, r.protocol, r.filter_scale, r.epsilon
)
select * from measured where $everything or not coalesce(error <= tolerance, false)
