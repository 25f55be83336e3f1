-- grain: one row per (capture, doc, layer, query)
-- Σ_h Σ_j cw_inter = 1 on every query row where the layer writes something.
-- $everything boolean = false: all rows checked, instead of those that break it
with summed as (
    select
        capture, doc, layer, query,
        sum(sum_cw_inter::double) as total,
        count(*) - count(sum_cw_inter) as undefined
    from contribution_rows
    where layer_output_norm > 0
    group by capture, doc, layer, query
),
measured as (
    select
        capture, doc, layer, query,
        case when undefined = 0 then abs(total - 1) end as error,
        identity_tolerance(value_dtype, config) as tolerance
    from summed
    join captures using (capture)
)
select * from measured where $everything or not coalesce(error <= tolerance, false)
