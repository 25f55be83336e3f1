-- grain: one row per (capture, doc)
-- A document has a row per token, from position 0 on without a gap, and predicts every token but the first.
-- $everything boolean = false: all rows checked, instead of those that break it
with counted as (
    select capture, doc, count(*) as n, min(position) as first, max(position) as last
    from tokens
    group by capture, doc
),
measured as (
    select
        capture, doc,
        abs(n_predicted - (n_tokens - 1)) + abs(n - n_tokens) + abs(first) + abs(last - (n_tokens - 1)) as error,
        0 as tolerance
    from documents
    left join counted using (capture, doc)
)
select * from measured where $everything or not coalesce(error <= tolerance, false)
