-- grain: one row per (capture, doc, layer, head, query)
-- No output is shorter than the minimum over the sink rate, which takes a row of attention to sum to 1.
-- $everything boolean = false: all rows checked, instead of those that break it
with measured as (
    select
        capture, doc, layer, head, query,
        -- Relative to ‖s‖ + ‖m‖: a row that sums to 1 + ε moves the output by at most ε ‖m‖.
        greatest(0, min_norm::double - output_norm) / nullif(sink_norm + tail_norm, 0) as error,
        row_sum_tolerance(compute_dtype, config) as tolerance
    from sink_geometry
    join captures using (capture)
    where min_norm is not null and sink_norm + tail_norm > 0
)
select * from measured where $everything or not coalesce(error <= tolerance, false)
