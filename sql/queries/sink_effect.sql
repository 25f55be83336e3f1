-- grain: one row per (capture, ranking, distance, n)
-- Does the first token spoil the selection? F with position 0 a candidate against F without it, paired per query, beside the length of its value; N = 1 is left out.
-- Published (Mudarisov et al. 2026): F up to 2 times lower with the sink selected; the sink's value 3 to 10 times shorter than others.
-- $capture varchar = null: a capture's id; null takes every capture
-- $layer integer = null: a layer, counted from 0; null takes every layer
with paired as (
    select
        capture, doc, layer, head, query, ranking, distance, n,
        max(f_score::double) filter (where sink = 'included') as f_included,
        max(f_score::double) filter (where sink = 'excluded') as f_excluded
    from selection
    where n > 1 and ($capture::varchar is null or capture = $capture) and ($layer::integer is null or layer = $layer)
    group by capture, doc, layer, head, query, ranking, distance, n
    having count(*) = 2
),
by_head as (
    select
        capture, doc, layer, head, ranking, distance, n,
        count(*) as n_queries,
        sum(f_included) as f_included,
        sum(f_excluded) as f_excluded,
        count(*) filter (where f_included < f_excluded) as n_lower
    from paired
    group by capture, doc, layer, head, ranking, distance, n
)
select
    capture,
    model,
    ranking,
    distance,
    n,
    sum(n_queries)::bigint as n_queries,
    sum(f_included) / sum(n_queries) as f_included_mean,
    sum(f_excluded) / sum(n_queries) as f_excluded_mean,
    sum(f_included - f_excluded) / sum(n_queries) as difference_mean,
    sum(n_lower) / sum(n_queries)::double as lower_share,
    sum(f_excluded) / nullif(sum(f_included), 0) as ratio,
    'up to 2' as ratio_published,
    avg(norm_ratio::double) as norm_ratio_mean,
    '0.1 to 0.33' as norm_ratio_published,
    corr((f_included - f_excluded) / n_queries, norm_ratio::double) as difference_norm_ratio_correlation,
    corr((f_included - f_excluded) / n_queries, mean_cosine::double) as difference_mean_cosine_correlation
from by_head
join sink_statistics using (capture, doc, layer, head)
join captures using (capture)
group by capture, model, ranking, distance, n
order by capture, ranking, distance, n
