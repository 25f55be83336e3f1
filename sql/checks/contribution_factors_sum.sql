-- grain: one row per (capture, layer, head, token_group)
-- The shares of attention, norm and direction sum to 1, or none of them is defined.
-- $everything boolean = false: all rows checked, instead of those that break it
with measured as (
    select
        capture, layer, head, token_group,
        case
            when share_alpha is null and share_norm is null and share_cosine is null then 0
            else
                abs(share_alpha::double + share_norm + share_cosine - 1)
                / greatest(1, abs(share_alpha) + abs(share_norm) + abs(share_cosine))
        end as error,
        1e-5 as tolerance
    from contribution_factors
)
select * from measured where $everything or not coalesce(error <= tolerance, false)
