-- grain: one row per (capture, doc, layer, head, query)
-- Σ_j cw_intra = 1 on every query row whose head writes something.
-- $everything boolean = false: all rows checked, instead of those that break it
with measured as (
    select
        capture, doc, layer, head, query,
        abs(sum_cw_intra - 1) as error,
        identity_tolerance(value_dtype, config) as tolerance
    from contribution_rows
    join captures using (capture)
    where output_norm > 0
)
select * from measured where $everything or not coalesce(error <= tolerance, false)
