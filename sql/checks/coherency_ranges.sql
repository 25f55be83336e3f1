-- grain: one row per (capture, layer, scale, lag, query_i, query_j)
-- Both coherencies are in 0 … 1, a row's with itself is 1, and rows are at least 2√2·a, in order, and inside the window.
-- $everything boolean = false: all rows checked, instead of those that break it
with measured as (
    select
        capture, layer, scale, lag, query_i, query_j,
        case
            when query_i > query_j or query_i < 2 * sqrt(2) * scale - 1e-3 or query_j >= window_tokens then 1
            when lag <> ceil(sqrt(2) * scale::double - 1e-5) then 1
            when (gamma is null) <> (gamma_null is null) then 1
            when gamma is null then 0
            else greatest(
                gamma - 1, -gamma, gamma_null - 1, -gamma_null, case when query_i = query_j then abs(gamma - 1) end
            )
        end as error,
        1e-5 as tolerance
    from coherency
    join captures using (capture)
)
select * from measured where $everything or not coalesce(error <= tolerance, false)
