-- grain: one row per (capture, doc, layer, head, query)
-- No output is shorter than the minimum over the sink rate; the excess is relative to ‖s‖ + ‖m‖.
-- $everything boolean = false: all rows checked, instead of those that break it
with measured as (
    select
        capture, doc, layer, head, query,
        greatest(0, min_norm::double - output_norm) / nullif(sink_norm + tail_norm, 0) as error,
        identity_tolerance(value_dtype, config) as tolerance
    from sink_geometry
    join captures using (capture)
    where min_norm is not null and sink_norm + tail_norm > 0
)
select * from measured where $everything or not coalesce(error <= tolerance, false)
