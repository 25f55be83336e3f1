-- grain: one row per (capture, doc)
-- A finished run of masking has every document under every condition: each ranking in each direction at each rate.
-- $everything boolean = false: all rows checked, instead of those that break it
with grid as (
    select
        capture,
        count(distinct (scope, reduce, sign, keep_first, layers, score, draw))
        * count(distinct direction) * count(distinct rate) as conditions
    from masking
    group by capture
),
counted as (
    select capture, doc, count(*) as n from masking group by capture, doc
),
measured as (
    select capture, doc, abs(coalesce(n, 0) - coalesce(conditions, 0)) as error, 0 as tolerance
    from documents
    join stages using (capture)
    left join grid using (capture)
    left join counted using (capture, doc)
    where stage = 'masking' and status = 'done'
)
select * from measured where $everything or not coalesce(error <= tolerance, false)
