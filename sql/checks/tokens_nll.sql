-- grain: one row per (capture, doc)
-- The losses of a document's tokens sum to its nll_sum, and only position 0 has none; an encoder's tokens have none.
-- $everything boolean = false: all rows checked, instead of those that break it
with summed as (
    select
        capture, doc,
        coalesce(sum(nll::double), 0) as total,
        count(*) filter (where (nll is null) <> (position = 0 or not causal)) as misplaced
    from tokens
    join captures using (capture)
    group by capture, doc
),
measured as (
    select
        capture, doc,
        case when misplaced = 0 then abs(total - nll_sum) / greatest(1, abs(nll_sum)) end as error,
        1e-6 as tolerance
    from documents
    left join summed using (capture, doc)
)
select * from measured where $everything or not coalesce(error <= tolerance, false)
