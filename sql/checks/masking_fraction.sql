-- grain: one row per (capture, doc, scope, reduce, direction, sign, keep_first, layers, score, draw, rate)
-- What is masked is a share of the visible entries, and no more than the rate where entries are ranked: ⌊rate·n⌋ of n.
-- $everything boolean = false: all rows checked, instead of those that break it
with measured as (
    select
        capture, doc, scope, reduce, direction, sign, keep_first, layers, score, draw, rate,
        -- A token's entries are as many as there are queries that see it, so its share may be above the rate.
        case
            when masked_fraction is not null then greatest(
                -masked_fraction::double,
                masked_fraction::double - case when scope in ('entry', 'row') then rate else 1 end,
                0
            )
        end as error,
        1e-6 as tolerance
    from masking
)
select * from measured where $everything or not coalesce(error <= tolerance, false)
