-- grain: one row per (capture, task, item, scope, reduce, direction, sign, keep_first, layers, score, draw, rate)
-- Label and picks are among the choices, two at least; the label is picked where its margin is positive, and not where it is negative.
-- $everything boolean = false: all rows checked, instead of those that break it
with measured as (
    select
        capture, task, item, scope, reduce, direction, sign, keep_first, layers, score, draw, rate,
        (not coalesce(
            n_choices >= 2
            and label between 0 and n_choices - 1
            and picked between 0 and n_choices - 1
            and picked_normalised between 0 and n_choices - 1
            and (margin = 0 or (margin > 0) = (picked = label)), false
        ))::integer as error,
        0 as tolerance
    from choices
)
select * from measured where $everything or not coalesce(error <= tolerance, false)
