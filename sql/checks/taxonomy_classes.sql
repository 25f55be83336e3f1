-- grain: one row per (capture, layer, head, rule)
-- A head's class follows from its shares by the rule, and a finished run has every rule of every kept head that it tallied.
-- $everything boolean = false: all rows checked, instead of those that break it
with expected as (
    select
        capture, layer, head, rule, class,
        count(*) over (partition by capture, layer, head) as n_rules,
        case
            when rule = 'majority' and greatest(share_self, share_sink, share_other) <= 0.5 then 'reset'
            when share_sink >= greatest(share_self, share_other) then 'mixer'
            when share_self >= share_other then 'retriever'
            else 'reset'
        end as class_by_shares
    from taxonomy
),
measured as (
    select
        capture, layer, head, rule, (class <> class_by_shares)::integer + abs(n_rules - 3) as error, 0 as tolerance
    from expected
)
select * from measured where $everything or not coalesce(error <= tolerance, false)
