-- grain: one row per (capture, layer, head)
-- Does attending to the first token shorten what a head writes? Cosine of the sink's value with the rest, and where the norm is least.
-- Published (Cunningham & Muca Cirone 2026): cosine negative; the least norm at a sink rate between 0 and 1.
-- $capture varchar = null: a capture's id; null takes every capture
-- $layer integer = null: a layer, counted from 0; null takes every layer
with sinks as (
    select
        capture, layer, head,
        count(*) as n_queries,
        avg(sink_rate::double) as sink_rate_mean,
        avg(cosine_sink_tail::double) as cosine_sink_tail_mean,
        avg(interior::integer) as interior_share,
        median(a_star::double) as a_star_median,
        avg(sink_norm::double) as sink_norm_mean,
        avg(tail_norm::double) as tail_norm_mean,
        avg(output_norm::double) as output_norm_mean,
        avg(min_norm::double) as min_norm_mean
    from sink_geometry
    where ($capture::varchar is null or capture = $capture) and ($layer::integer is null or layer = $layer)
    group by capture, layer, head
)
select
    capture,
    model,
    layer,
    head,
    n_queries,
    sink_rate_mean,
    cosine_sink_tail_mean,
    'negative' as cosine_sink_tail_published,
    interior_share,
    a_star_median,
    'between 0 and 1' as a_star_published,
    cosine_sink_tail_mean < 0 and interior_share > 0.5 as as_published,
    sink_norm_mean,
    tail_norm_mean,
    output_norm_mean,
    min_norm_mean
from sinks
join captures using (capture)
order by capture, layer, head
