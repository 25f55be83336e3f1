-- grain: one row per (capture, layer, head, rule)
-- The shares of self, sink and other sum to 1, and the margin is the largest less the next.
-- $everything boolean = false: all rows checked, instead of those that break it
with measured as (
    select
        capture, layer, head, rule,
        case
            when share_self + share_sink + share_other + margin is not null
                then greatest(
                    abs(share_self::double + share_sink + share_other - 1),
                    abs(
                        margin - (
                            2 * greatest(share_self, share_sink, share_other)::double
                            + least(share_self, share_sink, share_other) - 1
                        )
                    ),
                    abs(coalesce(agreement_halves, 0.5) - 0.5) - 0.5
                )
        end as error,
        1e-6 as tolerance
    from taxonomy
)
select * from measured where $everything or not coalesce(error <= tolerance, false)
