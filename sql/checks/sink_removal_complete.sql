-- grain: one row per (capture, doc)
-- A finished run of sink has each kept layer of every document alone, and all of them together where there are several.
-- $everything boolean = false: all rows checked, instead of those that break it
with counted as (
    select
        capture, doc,
        count(*) filter (where try_cast(layers as integer) is not null) as alone,
        count(*) filter (where try_cast(layers as integer) is null) as together
    from sink_removal group by capture, doc
),
measured as (
    select
        capture, doc,
        abs(coalesce(alone, 0) - n_alone) + abs(coalesce(together, 0) - n_together) as error,
        0 as tolerance
    from documents
    join (
        select
            capture,
            coalesce(json_array_length(config, '$.kept_layers'), n_layers) as n_kept,
            coalesce(json_array_length(config, '$.attention_layers'), n_layers) as n_attending,
            -- The one layer of a model that has no other is called all.
            case when n_kept = 1 and n_attending = 1 then 0 else n_kept end as n_alone,
            (n_kept > 1 or n_alone = 0)::integer as n_together
        from captures
    ) using (capture)
    join stages using (capture)
    left join counted using (capture, doc)
    where stage = 'sink' and status = 'done'
)
select * from measured where $everything or not coalesce(error <= tolerance, false)
