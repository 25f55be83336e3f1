-- grain: one row per (capture, doc, layer, head, query, ranking, distance, sink, n)
-- P ≥ N/(N + GInv) and R ≥ 1 − GInv/N on every row, and margin > 0, no inversions and F = 1 come together.
-- $everything boolean = false: all rows checked, instead of those that break it
with measured as (
    select
        capture, doc, layer, head, query, ranking, distance, sink, n,
        case
            when (margin > 0) = (inversions = 0) and (f_score = 1) = (inversions = 0) and precision + recall is not null
                then greatest(0, n / (n + inversions)::double - precision, 1 - inversions / n::double - recall)
        end as error,
        1e-6 as tolerance
    from selection
)
select * from measured where $everything or not coalesce(error <= tolerance, false)
