-- grain: one row per (capture, doc, layer, head, query)
-- The edges of a query row have ranks 1, 2, … k, and |cw_intra| does not rise along them.
-- $everything boolean = false: all rows checked, instead of those that break it
with ranked as (
    select
        capture, doc, layer, head, query,
        list(rank order by rank) as ranks,
        list(abs(cw_intra) order by rank) filter (where cw_intra is not null) as strengths
    from contribution_edges
    group by capture, doc, layer, head, query
),
measured as (
    select
        capture, doc, layer, head, query,
        (ranks <> generate_series(1, len(ranks)))::integer
        + coalesce(strengths <> list_reverse_sort(strengths), false)::integer as error,
        0 as tolerance
    from ranked
)
select * from measured where $everything or not coalesce(error <= tolerance, false)
