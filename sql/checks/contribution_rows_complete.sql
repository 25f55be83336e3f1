-- grain: one row per (capture, doc)
-- A finished run of contributions has a row for every layer, head and token of every document.
-- $everything boolean = false: all rows checked, instead of those that break it
with counted as (
    select capture, doc, count(*) as n from contribution_rows group by capture, doc
),
measured as (
    select
        capture, doc,
        abs(coalesce(n, 0) - documents.n_tokens::bigint * n_layers * n_heads) as error,
        0 as tolerance
    from documents
    join captures using (capture)
    join stages using (capture)
    left join counted using (capture, doc)
    where stage = 'contributions' and status = 'done'
)
select * from measured where $everything or error > tolerance
