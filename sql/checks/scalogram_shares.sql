-- grain: one row per (capture, layer, head, protocol, omega0, field)
-- Energies are not negative, their shares sum to 1 or none is defined, and at most four scales are dominant: one at least where there is energy.
-- $everything boolean = false: all rows checked, instead of those that break it
with measured as (
    select
        capture, layer, head, protocol, omega0, field,
        case
            when min(energy) < 0 or count(energy) < count(*) then 1
            when sum(energy::double) = 0 then count(energy_share) + count(*) filter (where dominant)
            when count(*) filter (where dominant) not between 1 and 4 then 1
            else abs(sum(energy_share::double) - 1)
        end as error,
        1e-5 as tolerance
    from scalogram
    group by capture, layer, head, protocol, omega0, field
)
select * from measured where $everything or not coalesce(error <= tolerance, false)
