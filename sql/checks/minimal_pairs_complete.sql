-- grain: one row per (capture, task, item)
-- Every pair has one row of the clean model, and as many conditions as any other.
-- $everything boolean = false: all rows checked, instead of those that break it
with pairs as (
    select capture, task, item, count(*) as n, count(*) filter (arm = 'none' and delta = 0) as n_clean
    from minimal_pairs
    group by all
),
measured as (
    select
        capture, task, item,
        abs(n_clean - 1) + max(n) over (partition by capture) - n as error,
        0 as tolerance
    from pairs
)
select * from measured where $everything or not coalesce(error <= tolerance, false)
