-- grain: one row per (capture, table_name, doc)
-- The loss of every changed pass is defined, and no less than 0.
-- $everything boolean = false: all rows checked, instead of those that break it
with held as (
    select capture, 'masking' as table_name, doc, nll_sum from masking
    union all
    select capture, 'sink_removal', doc, nll_sum from sink_removal
    union all
    select capture, 'head_ablation', doc, nll_sum from head_ablation
    union all
    select capture, 'pruning', doc, nll_sum from pruning
    union all
    select capture, 'perturbation', doc, nll_sum from perturbation
    union all
    select capture, 'repair', doc, nll_perturbed_sum from repair
    union all
    select capture, 'repair', doc, nll_repaired_sum from repair
),
measured as (
    select capture, table_name, doc, count(*) - count(*) filter (where nll_sum >= 0) as error, 0 as tolerance
    from held
    group by capture, table_name, doc
)
select * from measured where $everything or not coalesce(error <= tolerance, false)
