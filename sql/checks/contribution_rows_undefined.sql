-- grain: one row per (capture, doc, layer, head, query)
-- A sum of contribution weights is undefined exactly where the output that it divides by has norm 0.
-- $everything boolean = false: all rows checked, instead of those that break it
with measured as (
    select
        capture, doc, layer, head, query,
        (sum_alpha is null or output_norm is null or layer_output_norm is null)::integer
        + ((sum_cw_intra is null) <> (coalesce(output_norm, 0) = 0))::integer
        + ((negative_share is null) <> (coalesce(output_norm, 0) = 0))::integer
        + ((sum_cw_inter is null) <> (coalesce(layer_output_norm, 0) = 0))::integer as error,
        0 as tolerance
    from contribution_rows
)
select * from measured where $everything or error > tolerance
