-- grain: one row per (capture, doc)
-- A finished run of repair has every document under every perturbation and repair: each target in each set of layers.
-- $everything boolean = false: all rows checked, instead of those that break it
with grid as (
    select capture, count(distinct (protocol, arm, delta, delta_kind, layers, first_token, seed, target, repaired_layers)) as conditions
    from repair
    group by capture
),
counted as (
    select capture, doc, count(*) as n from repair group by capture, doc
),
measured as (
    select capture, doc, abs(coalesce(n, 0) - coalesce(conditions, 0)) as error, 0 as tolerance
    from documents
    join stages using (capture)
    left join grid using (capture)
    left join counted using (capture, doc)
    where stage = 'repair' and status = 'done'
)
select * from measured where $everything or not coalesce(error <= tolerance, false)
