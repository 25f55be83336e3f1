-- grain: one row per (capture, doc)
-- A finished run of pruning has every document under every condition: each strategy, and each seed of random, at each retention.
-- $everything boolean = false: all rows checked, instead of those that break it
with grid as (
    select capture, count(distinct (strategy, seed)) * count(distinct retention) as conditions
    from pruning
    group by capture
),
counted as (
    select capture, doc, count(*) as n from pruning group by capture, doc
),
measured as (
    select capture, doc, abs(coalesce(n, 0) - coalesce(conditions, 0)) as error, 0 as tolerance
    from documents
    join stages using (capture)
    left join grid using (capture)
    left join counted using (capture, doc)
    where stage = 'pruning' and status = 'done'
)
select * from measured where $everything or not coalesce(error <= tolerance, false)
