-- grain: one row per (capture, doc)
-- A finished run of perturbation has every document under every condition: each protocol, arm, δ, set of layers, first token in or out, and seed.
-- $everything boolean = false: all rows checked, instead of those that break it
with grid as (
    select capture, count(distinct (protocol, arm, delta, delta_kind, layers, first_token, seed)) as conditions
    from perturbation
    group by capture
),
counted as (
    select capture, doc, count(*) as n from perturbation group by capture, doc
),
measured as (
    select capture, doc, abs(coalesce(n, 0) - coalesce(conditions, 0)) as error, 0 as tolerance
    from documents
    join stages using (capture)
    left join grid using (capture)
    left join counted using (capture, doc)
    where stage = 'perturbation' and status = 'done'
)
select * from measured where $everything or not coalesce(error <= tolerance, false)
