-- grain: one row per (capture, layer, head)
-- Is the output norm convex in the sink rate? Curvature of the fitted parabola with its 95 % interval, and how many heads are surely convex.
-- Published (Cunningham & Muca Cirone 2026): convex, with its minimum at a sink rate between 0 and 1.
-- $capture varchar = null: a capture's id; null takes every capture
-- $layer integer = null: a layer, counted from 0; null takes every layer
with fits as (
    select
        capture, layer, head, n, curvature, curvature_lo, curvature_hi, a_min, r2,
        curvature_lo > 0 as convex,
        avg((curvature_lo > 0)::integer) over (partition by capture, layer) as convex_share_layer,
        avg((curvature_lo > 0)::integer) over (partition by capture) as convex_share_capture
    from sink_fit
    where $capture::varchar is null or capture = $capture
)
select
    capture,
    model,
    layer,
    head,
    n as n_queries,
    curvature,
    curvature_lo,
    curvature_hi,
    'positive' as curvature_published,
    convex,
    convex_share_layer,
    convex_share_capture,
    a_min,
    'between 0 and 1' as a_min_published,
    r2
from fits
join captures using (capture)
where $layer::integer is null or layer = $layer
order by capture, layer, head
