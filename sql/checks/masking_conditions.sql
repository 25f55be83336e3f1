-- grain: one row per (capture, scope, reduce, score, draw, rate)
-- Only conditions that can be: a rate in (0, 1]; reduce none where entries are ranked; norm, alti, rollout of layer_token alone; draws of random alone.
-- $everything boolean = false: all rows checked, instead of those that break it
with measured as (
    select
        capture, scope, reduce, score, draw, rate,
        (not coalesce(rate > 0 and rate <= 1, false))::integer
        + ((reduce = 'none') <> (scope in ('entry', 'row')))::integer
        + (score in ('norm', 'alti', 'rollout') and scope <> 'layer_token')::integer
        + (draw < 0 or (draw > 0 and score <> 'random'))::integer as error,
        0 as tolerance
    from masking
    group by capture, scope, reduce, score, draw, rate
)
select * from measured where $everything or not coalesce(error <= tolerance, false)
