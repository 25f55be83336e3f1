-- grain: one row per (capture, doc)
-- A finished run of head_ablation has every head of each kept layer of every document.
-- $everything boolean = false: all rows checked, instead of those that break it
with counted as (
    select
        capture, doc,
        count(*) as n,
        count(*) filter (where head < 0 or head >= n_heads) as misplaced
    from head_ablation
    join captures using (capture)
    group by capture, doc
),
measured as (
    select
        capture, doc,
        abs(coalesce(n, 0) - n_heads * coalesce(json_array_length(config, '$.kept_layers'), n_layers)::bigint)
        + coalesce(misplaced, 0) as error,
        0 as tolerance
    from documents
    join captures using (capture)
    join stages using (capture)
    left join counted using (capture, doc)
    where stage = 'head_ablation' and status = 'done'
)
select * from measured where $everything or not coalesce(error <= tolerance, false)
