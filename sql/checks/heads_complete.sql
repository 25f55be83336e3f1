-- grain: one row per (capture)
-- Heads are complete: n_heads in each layer with attention, each in range and reading the key/value head of its group.
-- $everything boolean = false: all rows checked, instead of those that break it
with counted as (
    select
        capture,
        count(*) as n,
        count(*) filter (
            where layer < 0 or layer >= n_layers or head < 0 or head >= n_heads
            or kv_head <> head // (n_heads // n_kv_heads)
        ) as misplaced
    from heads
    join captures using (capture)
    group by capture
),
measured as (
    select
        capture,
        abs(coalesce(n, 0) - n_attending::bigint * n_heads) + coalesce(misplaced, 0) as error,
        0 as tolerance
    from (
        select *, coalesce(json_array_length(config, '$.attention_layers'), n_layers) as n_attending from captures
    )
    left join counted using (capture)
)
select * from measured where $everything or not coalesce(error <= tolerance, false)
