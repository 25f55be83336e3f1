-- grain: one row per (capture, table_name, doc)
-- The clean losses beside every changed one are the document's own: its nll_sum and n_predicted.
-- $everything boolean = false: all rows checked, instead of those that break it
with held as (
    select capture, 'masking' as table_name, doc, nll_clean_sum, n_predicted from masking
    union all
    select capture, 'sink_removal', doc, nll_clean_sum, n_predicted from sink_removal
    union all
    select capture, 'head_ablation', doc, nll_clean_sum, n_predicted from head_ablation
    union all
    select capture, 'pruning', doc, nll_clean_sum, n_predicted from pruning
    union all
    select capture, 'perturbation', doc, nll_clean_sum, n_predicted from perturbation
    union all
    select capture, 'repair', doc, nll_clean_sum, n_predicted from repair
),
measured as (
    select
        capture, table_name, doc,
        max(
            coalesce(
                abs(nll_clean_sum - documents.nll_sum) / greatest(1, abs(documents.nll_sum))
                + abs(held.n_predicted - documents.n_predicted),
                'infinity'::double
            )
        ) as error,
        1e-6 as tolerance
    from held
    left join documents using (capture, doc)
    group by capture, table_name, doc
)
select * from measured where $everything or not coalesce(error <= tolerance, false)
