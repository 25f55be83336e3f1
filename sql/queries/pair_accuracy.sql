-- grain: one row per (capture, task, protocol, arm, pair_noise, delta, delta_kind, layers, first_token)
-- How often is the grammatical sentence of a minimal pair the likelier one, clean and perturbed? Accuracy by arm with its fall from the clean model, and how far apart the arms are, with 95 % intervals over pairs.
-- Published (Vardhan & Teja 2026, Pythia-410M, a LayerNorm model, BLiMP; absolute δ): 89.5 % clean; magnitude and angle 69.1 and 87.9 % at δ 5, 56.0 and 77.1 at 10, 53.5 and 67.4 at 15.
-- $capture varchar = null: a capture's id; null takes every capture
-- $task varchar = null: a task, such as regular_plural_subject_verb_agreement_1; null takes all tasks together, with `task` NULL
-- $per_task boolean = false: one row per task; false takes all of them together
with published as (
    select arm, delta, accuracy_published::double as accuracy_published
    from (values
        ('none', 0, 0.895),
        ('magnitude', 5, 0.691), ('magnitude', 10, 0.560), ('magnitude', 15, 0.535),
        ('angle', 5, 0.879), ('angle', 10, 0.771), ('angle', 15, 0.674)
    ) as figures (arm, delta, accuracy_published)
),
of_pairs as (  -- draws are one condition: what a pair gets of it is their mean
    select
        capture, task, item, protocol, arm, pair_noise, delta, delta_kind, layers, first_token,
        avg(correct::integer) as correct,
        avg(logp_good - logp_bad) as margin,
        sum(n_tokens) as n_moved,
        sum(unmoved) as n_unmoved,
        any_value(first_scored) as first_scored
    from minimal_pairs
    where ($capture::varchar is null or capture = $capture) and ($task::varchar is null or task = $task)
    group by all
),
beside as (
    select
        o.* replace (case when $per_task or $task::varchar is not null then o.task end as task),
        c.correct as clean,
        a.correct as other
    from of_pairs as o
    join of_pairs as c on c.capture = o.capture and c.task = o.task and c.item = o.item and c.arm = 'none'
    left join of_pairs as a
        on a.capture = o.capture and a.task = o.task and a.item = o.item and o.arm = 'magnitude' and a.arm = 'angle'
        and a.protocol = o.protocol and a.pair_noise = o.pair_noise and a.delta = o.delta
        and a.delta_kind = o.delta_kind and a.layers = o.layers and a.first_token = o.first_token
),
conditions as (
    select
        capture, task, protocol, arm, pair_noise, delta, delta_kind, layers, first_token,
        count(*) as n_pairs,
        avg(correct) as accuracy,
        avg(clean) as accuracy_clean,
        avg(clean - correct) as accuracy_drop,
        1.96 * nullif(stddev_samp(clean - correct), 0) / sqrt(count(*)) as half,
        avg(other - correct) as angle_less_magnitude,
        1.96 * nullif(stddev_samp(other - correct), 0) / sqrt(count(*)) as half_arms,
        avg(margin) as margin_mean,
        sum(n_unmoved) / nullif(sum(n_moved), 0) as unmoved_share,
        bool_and(first_scored) as first_scored
    from beside
    group by all
)
select
    c.capture, model, norm, c.task, c.protocol, c.arm, c.pair_noise, c.delta, c.delta_kind, c.layers, c.first_token,
    n_pairs,
    accuracy,
    wilson_lo(accuracy, n_pairs) as accuracy_lo,
    wilson_hi(accuracy, n_pairs) as accuracy_hi,
    case when c.delta_kind <> 'relative' and norm = 'layernorm' then accuracy_published end as accuracy_published,
    accuracy_clean,
    accuracy_drop,
    accuracy_drop - half as accuracy_drop_lo,
    accuracy_drop + half as accuracy_drop_hi,
    angle_less_magnitude,
    angle_less_magnitude - half_arms as angle_less_magnitude_lo,
    angle_less_magnitude + half_arms as angle_less_magnitude_hi,
    margin_mean,
    unmoved_share,
    first_scored
from conditions as c
join captures using (capture)
left join published as p on p.arm = c.arm and p.delta = round(c.delta::double, 6)
order by
    c.capture, c.task nulls first, c.arm <> 'none', c.protocol, c.layers, c.first_token, c.pair_noise, c.delta_kind, c.delta,
    list_position(['magnitude', 'angle'], c.arm)
