-- grain: one row per (capture, doc, protocol, arm, delta, delta_kind, layers, first_token, seed, target, repaired_layers)
-- What the first perturbed layer alone computes is the clean run's already, since its output is moved: to put it back changes no loss.
-- $everything boolean = false: all rows checked, instead of those that break it
with measured as (
    select
        capture, doc, protocol, arm, delta, delta_kind, layers, first_token, seed, target, repaired_layers,
        coalesce(abs(nll_repaired_sum - nll_perturbed_sum) / greatest(1, n_predicted), 'infinity'::double) as error,
        loss_tolerance(compute_dtype) as tolerance
    from repair
    join captures using (capture)
    where repaired_layers = first_layer(layers)::varchar
)
select * from measured where $everything or not coalesce(error <= tolerance, false)
