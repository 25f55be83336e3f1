-- grain: one row per (capture, doc)
-- A finished run of propagation has every document under every condition at every layer from the first perturbed one to the last.
-- $everything boolean = false: all rows checked, instead of those that break it
with conditions as (
    select capture, protocol, arm, delta, delta_kind, layers, first_token, seed, first_layer(layers) as first from propagation group by all
),
grid as (
    select capture, sum(n_layers - first) as n_expected from conditions join captures using (capture) group by capture
),
counted as (
    select capture, doc, count(*) filter (where layer >= first_layer(layers)) as n from propagation group by capture, doc
),
measured as (
    select capture, doc, abs(coalesce(n, 0) - coalesce(n_expected, 0)) as error, 0 as tolerance
    from documents
    join stages using (capture)
    left join grid using (capture)
    left join counted using (capture, doc)
    where stage = 'propagation' and status = 'done'
)
select * from measured where $everything or not coalesce(error <= tolerance, false)
