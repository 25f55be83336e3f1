-- grain: one row per (capture, doc, scope, reduce, sign, keep_first, layers, score, draw)
-- At a rate of 1 all candidates are masked, so both directions give the same loss, in nats a token.
-- $everything boolean = false: all rows checked, instead of those that break it
with ends as (
    select
        capture, doc, scope, reduce, sign, keep_first, layers, score, draw,
        max(nll_sum) - min(nll_sum) + max(masked_fraction) - min(masked_fraction) as gap,
        min(n_predicted) as n
    from masking
    where rate = 1
    group by capture, doc, scope, reduce, sign, keep_first, layers, score, draw
    having count(*) > 1
),
measured as (
    select
        capture, doc, scope, reduce, sign, keep_first, layers, score, draw,
        gap / greatest(1, n) as error,
        loss_tolerance(compute_dtype) as tolerance
    from ends
    join captures using (capture)
)
select * from measured where $everything or not coalesce(error <= tolerance, false)
