-- grain: one row per (capture, layer)
-- Every layer is probed for the same targets by the same features as any other.
-- $everything boolean = false: all rows checked, instead of those that break it
with layers as (
    select capture, layer, count(*) as n from probes group by all
),
measured as (
    select
        capture, layer,
        max(n) over (partition by capture) - n as error,
        0 as tolerance
    from layers
)
select * from measured where $everything or not coalesce(error <= tolerance, false)
