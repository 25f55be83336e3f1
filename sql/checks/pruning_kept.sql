-- grain: one row per (capture, strategy, retention, seed)
-- heads_kept is ⌈retention · heads⌉ of all layers that the store keeps, a retention in (0, 1]; seeds of random alone. Where every head stays the loss is the clean one, in nats a token.
-- $everything boolean = false: all rows checked, instead of those that break it
with counted as (
    select
        capture, strategy, retention, seed,
        min(heads_kept) as least,
        max(heads_kept) as most,
        max(abs(nll_sum - nll_clean_sum) / greatest(1, n_predicted)) as change
    from pruning
    group by capture, strategy, retention, seed
),
measured as (
    select
        capture, strategy, retention, seed,
        (not coalesce(retention > 0 and retention <= 1, false))::integer
        + (seed < 0 or (seed > 0 and strategy <> 'random'))::integer
        + (most - least)
        -- On decimals: 0.7 as a binary number is not quite 0.7.
        + abs(coalesce(least - ceil(retention::varchar::decimal(18, 9) * heads), 'infinity'::double))
        + (most = heads and not coalesce(change <= loss_tolerance(compute_dtype), false))::integer as error,
        0 as tolerance
    from counted
    join (
        select
            capture, compute_dtype,
            n_heads * coalesce(json_array_length(config, '$.kept_layers'), n_layers)::bigint as heads
        from captures
    ) using (capture)
)
select * from measured where $everything or not coalesce(error <= tolerance, false)
