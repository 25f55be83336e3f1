-- grain: one row per (capture, doc, scope, reduce, direction, sign, keep_first, layers, score, draw, rate)
-- Conditions that mask the same by construction agree: vw and vwon in a row; both signs of a score that is never negative; both reductions of random.
-- $everything boolean = false: all rows checked, instead of those that break it
with alike as (
    select
        capture, doc, scope, direction, keep_first, layers, draw, rate, nll_sum, masked_fraction,
        case when score = 'random' then 'none' else reduce end as reduce,
        case when score in ('cw_intra', 'cw_inter') then sign else 'absolute' end as sign,
        case when scope = 'row' and score = 'vwon' then 'vw' else score end as score
    from masking
),
measured as (
    select
        capture, doc, scope, reduce, direction, sign, keep_first, layers, score, draw, rate,
        max(nll_sum) - min(nll_sum) + max(masked_fraction) - min(masked_fraction) as error,
        0 as tolerance
    from alike
    group by capture, doc, scope, reduce, direction, sign, keep_first, layers, score, draw, rate
    having count(*) > 1
)
select * from measured where $everything or not coalesce(error <= tolerance, false)
