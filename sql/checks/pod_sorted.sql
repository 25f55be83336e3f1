-- grain: one row per (capture, layer, head, protocol, filter_scale, field, draw, k)
-- Eigenvalues are not negative, and do not rise along k = 1, 2, …, without a gap.
-- $everything boolean = false: all rows checked, instead of those that break it
with followed as (
    select
        capture, layer, head, protocol, filter_scale, field, draw, k, eigenvalue,
        lag(eigenvalue) over spectrum as before,
        lag(k) over spectrum as k_before
    from pod_spectrum
    window spectrum as (partition by capture, layer, head, protocol, filter_scale, field, draw order by k)
),
measured as (
    select
        capture, layer, head, protocol, filter_scale, field, draw, k,
        case
            when k <> coalesce(k_before, 0) + 1 then 1
            else greatest(eigenvalue - coalesce(before, eigenvalue), -eigenvalue)
        end as error,
        0 as tolerance
    from followed
)
select * from measured where $everything or not coalesce(error <= tolerance, false)
