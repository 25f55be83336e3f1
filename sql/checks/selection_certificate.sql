-- grain: one row per (capture, doc, layer, head, query, ranking, distance, sink, n)
-- What the certificate guarantees is not above what was measured, and of the cosine it says nothing.
-- $everything boolean = false: all rows checked, instead of those that break it
with measured as (
    select
        capture, doc, layer, head, query, ranking, distance, sink, n,
        case
            when distance = 'euclidean' and (certified_precision is null) = (certified_recall is null)
                then greatest(0, coalesce(certified_precision, 0) - precision, coalesce(certified_recall, 0) - recall)
            when certified_precision is null and certified_recall is null then 0
        end as error,
        1e-6 as tolerance
    from selection
)
select * from measured where $everything or not coalesce(error <= tolerance, false)
