-- grain: one row per (capture)
-- A capture has as many documents and tokens as its row says.
-- $everything boolean = false: all rows checked, instead of those that break it
with summed as (
    select capture, count(*) as docs, sum(n_tokens)::bigint as total from documents group by capture
),
measured as (
    select
        capture,
        abs(n_docs - coalesce(docs, 0)) + abs(captures.n_tokens - coalesce(total, 0)) as error,
        0 as tolerance
    from captures
    left join summed using (capture)
)
select * from measured where $everything or not coalesce(error <= tolerance, false)
