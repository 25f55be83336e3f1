-- grain: one row per (capture, layer, head)
-- Bands of lags follow on one another from 0, and their mass sums to 1, or less where a learned sink takes some: to what rows of attention miss the sum 1.
-- $everything boolean = false: all rows checked, instead of those that break it
with bands as (
    select
        *,
        lag_lo - coalesce(lag(lag_hi) over (partition by capture, layer, head order by lag_lo), -1) - 1 as gap
    from lag_mass
),
measured as (
    select
        capture, layer, head,
        case
            when count(*) filter (where gap <> 0 or lag_hi < lag_lo or mass < 0) > 0 then 1
            else greatest(sum(mass::double) - 1, -sum(mass::double))
        end as error,
        any_value(row_sum_tolerance(compute_dtype, config)) as tolerance
    from bands
    join captures using (capture)
    group by capture, layer, head
)
select * from measured where $everything or not coalesce(error <= tolerance, false)
