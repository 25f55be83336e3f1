-- grain: one row per (capture, doc, protocol, arm, delta, delta_kind, layers, first_token, seed)
-- Where a perturbation begins the distance is what was moved: by an absolute δ in exact no more than δ, and of the first token 0 where it is left alone.
-- $everything boolean = false: all rows checked, instead of those that break it
with measured as (
    select
        capture, doc, protocol, arm, delta, delta_kind, layers, first_token, seed,
        greatest(
            case
                when first_token = 'exclude' then coalesce(abs(distance_first_token), 'infinity'::float)
                when protocol = 'exact' and delta_kind = 'absolute'
                    then coalesce(distance_first_token / delta - 1, 'infinity'::float)
                else 0
            end,
            case
                when protocol = 'exact' and delta_kind = 'absolute' then coalesce(distance_mean / delta - 1, 'infinity'::float)
                when coalesce(distance_mean, -1) < 0 then 'infinity'::float
                else 0
            end
        ) as error,
        -- A long token's own rounding may exceed a small δ: perturbation_displacement bounds that.
        0.01 as tolerance
    from propagation
    where layer = first_layer(layers)
)
select * from measured where $everything or not coalesce(error <= tolerance, false)
