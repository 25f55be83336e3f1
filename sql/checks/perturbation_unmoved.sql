-- grain: one row per (capture, doc, protocol, arm, delta, delta_kind, layers, first_token, seed)
-- From 0 to n_tokens tokens stayed, and a row is flagged where they are more than 5 %. Of a single layer both arms of exact move the same tokens.
-- $everything boolean = false: all rows checked, instead of those that break it
with alike as (
    select
        *,
        max(unmoved) over of_arms - min(unmoved) over of_arms as apart
    from perturbation
    window of_arms as (partition by capture, doc, protocol, delta, delta_kind, layers, first_token, seed)
),
measured as (
    select
        capture, doc, protocol, arm, delta, delta_kind, layers, first_token, seed,
        greatest(0, -unmoved, unmoved - n_tokens)
        + (flagged is distinct from (unmoved > 0.05 * n_tokens))::integer
        + case when protocol = 'exact' and regexp_full_match(layers, '\d+') then apart else 0 end as error,
        0 as tolerance
    from alike
)
select * from measured where $everything or not coalesce(error <= tolerance, false)
