-- grain: one row per (capture, doc, layer, head, query, ranking, sink)
-- One key alone is its own sum: Euclidean F_1 is 1, unless another vector repeats it, when the margin is 0.
-- $everything boolean = false: all rows checked, instead of those that break it
with measured as (
    select
        capture, doc, layer, head, query, ranking, sink,
        case when margin >= 0 and (f_score = 1 or margin = 0) then 0 else greatest(0, -margin) + 1 - f_score end as error,
        0 as tolerance
    from selection
    where n = 1 and distance = 'euclidean'
)
select * from measured where $everything or not coalesce(error <= tolerance, false)
