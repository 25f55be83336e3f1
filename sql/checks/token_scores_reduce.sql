-- grain: one row per (capture, doc, layer, head, position, score)
-- Each score has a mean row and a sum row, and the sum is the mean times the number of queries.
-- $everything boolean = false: all rows checked, instead of those that break it
with paired as (
    select
        capture, doc, layer, head, position,
        count(*) = 2 and min(n_queries) = max(n_queries) and min(n_queries) > 0 as whole,
        max(n_queries) as n,
        unnest(['raw', 'vw', 'vwon', 'cw_intra', 'cw_intra_abs', 'cw_inter', 'cw_inter_abs']) as score,
        unnest([
            max(raw) filter (where reduce = 'mean'), max(vw) filter (where reduce = 'mean'),
            max(vwon) filter (where reduce = 'mean'), max(cw_intra) filter (where reduce = 'mean'),
            max(cw_intra_abs) filter (where reduce = 'mean'), max(cw_inter) filter (where reduce = 'mean'),
            max(cw_inter_abs) filter (where reduce = 'mean')
        ]) as mean_score,
        unnest([
            max(raw) filter (where reduce = 'sum'), max(vw) filter (where reduce = 'sum'),
            max(vwon) filter (where reduce = 'sum'), max(cw_intra) filter (where reduce = 'sum'),
            max(cw_intra_abs) filter (where reduce = 'sum'), max(cw_inter) filter (where reduce = 'sum'),
            max(cw_inter_abs) filter (where reduce = 'sum')
        ]) as sum_score
    from token_scores
    group by capture, doc, layer, head, position
),
measured as (
    select
        capture, doc, layer, head, position, score,
        case
            when not whole then null
            when mean_score is null and sum_score is null then 0
            else abs(sum_score - n * mean_score::double) / greatest(abs(sum_score), 1e-3)
        end as error,
        1e-5 as tolerance
    from paired
)
select * from measured where $everything or not coalesce(error <= tolerance, false)
