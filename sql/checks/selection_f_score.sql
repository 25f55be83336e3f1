-- grain: one row per (capture, doc, layer, head, query, ranking, distance, sink, n)
-- F = 2PR/(P + R), with P above 0 and all three at most 1.
-- $everything boolean = false: all rows checked, instead of those that break it
with measured as (
    select
        capture, doc, layer, head, query, ranking, distance, sink, n,
        case
            when precision > 0 and precision <= 1 and recall between 0 and 1
                then abs(f_score - 2 * precision::double * recall / (precision + recall))
        end as error,
        1e-6 as tolerance
    from selection
)
select * from measured where $everything or not coalesce(error <= tolerance, false)
