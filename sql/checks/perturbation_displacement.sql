-- grain: one row per (capture, doc, protocol, arm, delta, delta_kind, layers, first_token, seed)
-- In exact every moved token is moved by δ: to 1e-4, and what the cast to the model's dtype can add, half a unit of its last place of ‖h′‖. Undefined exactly where no token was moved.
-- $everything boolean = false: all rows checked, instead of those that break it
with measured as (
    select
        capture, doc, protocol, arm, delta, delta_kind, layers, first_token, seed,
        case
            when perturbation.n_tokens = unmoved
                then (displacement_mean is not null or displacement_max_error is not null or norm_ratio_max is not null)::integer
            when protocol = 'exact'
                then coalesce(displacement_max_error, 'infinity'::float)
                + (displacement_mean is null or norm_ratio_max is null)::integer
            else (displacement_mean is null or displacement_max_error is null or norm_ratio_max is null)::integer
        end as error,
        1e-4 + unit_roundoff(compute_dtype) * (coalesce(norm_ratio_max, 0) + 1) as tolerance
    from perturbation
    join captures using (capture)
)
select * from measured where $everything or not coalesce(error <= tolerance, false)
