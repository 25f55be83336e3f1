-- grain: one row per (capture, doc, protocol, arm, delta, delta_kind, layers, first_token, seed)
-- The displacements of a sampled document's tokens sum to the displacement_mean of its row in perturbation times the tokens moved: what stayed was moved by 0.
-- $everything boolean = false: all rows checked, instead of those that break it
with totals as (
    select capture, doc, protocol, arm, delta, delta_kind, layers, first_token, seed, sum(coalesce(displacement, 'infinity'::float)::double) as total, min(displacement) as least
    from displacement
    group by capture, doc, protocol, arm, delta, delta_kind, layers, first_token, seed
),
measured as (
    select
        capture, doc, protocol, arm, delta, delta_kind, layers, first_token, seed,
        coalesce(
            abs(total - coalesce(displacement_mean, 0) * (n_tokens - unmoved)) / greatest(1, total), 'infinity'::double
        ) + greatest(0, -least) as error,
        1e-4 as tolerance
    from totals
    left join perturbation using (capture, doc, protocol, arm, delta, delta_kind, layers, first_token, seed)
)
select * from measured where $everything or not coalesce(error <= tolerance, false)
