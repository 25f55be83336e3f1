-- grain: one row per (capture, doc)
-- A finished run of contributions has a row for every kept layer, head and token of every document.
-- $everything boolean = false: all rows checked, instead of those that break it
with counted as (
    select capture, doc, count(*) as n from contribution_rows group by capture, doc
),
measured as (
    select
        capture, doc,
        abs(coalesce(n, 0) - documents.n_tokens::bigint * n_kept * n_heads) as error,
        0 as tolerance
    from documents
    join (
        select *, coalesce(json_array_length(config, '$.kept_layers'), n_layers) as n_kept from captures
    ) using (capture)
    join stages using (capture)
    left join counted using (capture, doc)
    where stage = 'contributions' and status = 'done'
)
select * from measured where $everything or error > tolerance
