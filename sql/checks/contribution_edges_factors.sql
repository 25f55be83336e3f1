-- grain: one row per (capture, doc, layer, head, query, key)
-- cw_intra = alpha · relative_norm · cosine on every edge; a value of length 0 has no direction and contributes 0.
-- $everything boolean = false: all rows checked, instead of those that break it
with measured as (
    select
        capture, doc, layer, head, query, key,
        abs(cw_intra::double - case when relative_norm = 0 then 0 else alpha * relative_norm * cosine end)
        / greatest(1, abs(cw_intra)) as error,
        1e-5 as tolerance
    from contribution_edges
)
select * from measured where $everything or not coalesce(error <= tolerance, false)
