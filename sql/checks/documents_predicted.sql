-- grain: one row per (capture, doc)
-- A document has a row per token, from position 0 on without a gap, and predicts all but the first; an encoder none.
-- $everything boolean = false: all rows checked, instead of those that break it
with counted as (
    select capture, doc, count(*) as n, min(position) as first, max(position) as last
    from tokens
    group by capture, doc
),
measured as (
    select
        d.capture, d.doc,
        abs(d.n_predicted - case when c.causal then d.n_tokens - 1 else 0 end)
        + abs(n - d.n_tokens) + abs(first) + abs(last - (d.n_tokens - 1)) as error,
        0 as tolerance
    from documents as d
    join captures as c on c.capture = d.capture
    left join counted on counted.capture = d.capture and counted.doc = d.doc
)
select * from measured where $everything or not coalesce(error <= tolerance, false)
