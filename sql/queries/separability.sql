-- grain: one row per (capture, ranking, distance, sink, n)
-- Do the N best-ranked keys lie apart from the rest, more than random keys do, and at which N most? With the sink and without it; N = 1 is left out, since one key is its own sum.
-- Published (Mudarisov et al. 2026): above random; the best N is 1 to 4. F and random_f are compared over the queries for which random rankings were drawn.
-- $capture varchar = null: a capture's id; null takes every capture
-- $layer integer = null: a layer, counted from 0; null takes every layer
with chosen as (
    select * from selection
    where n > 1 and ($capture::varchar is null or capture = $capture) and ($layer::integer is null or layer = $layer)
),
means as (
    select
        capture, ranking, distance, sink, n,
        count(*) as n_rows,
        avg(precision::double) as precision_mean,
        avg(recall::double) as recall_mean,
        avg(f_score::double) as f_mean,
        avg(mass::double) as mass_mean,
        count(random_f_mean) as n_drawn,
        avg(f_score::double) filter (where random_f_mean is not null) as f_mean_drawn,
        avg(random_f_mean::double) as random_f_mean
    from chosen
    group by capture, ranking, distance, sink, n
),
best as (
    select capture, ranking, distance, sink, arg_min(n, (-f_score, n)) as n
    from chosen
    group by capture, doc, layer, head, query, ranking, distance, sink
),
best_counts as (
    select
        capture, ranking, distance, sink, n,
        count(*) / sum(count(*)) over (partition by capture, ranking, distance, sink)::double as best_share
    from best
    group by capture, ranking, distance, sink, n
)
select
    capture,
    model,
    ranking,
    distance,
    sink,
    n,
    n_rows,
    precision_mean,
    recall_mean,
    f_mean,
    mass_mean,
    n_drawn,
    f_mean_drawn,
    random_f_mean,
    f_mean_drawn - random_f_mean as f_above_random,
    'above 0' as f_above_random_published,
    coalesce(best_share, 0) as best_share,
    'best N 1 to 4' as best_n_published
from means
left join best_counts using (capture, ranking, distance, sink, n)
join captures using (capture)
order by capture, ranking, distance, sink desc, n
