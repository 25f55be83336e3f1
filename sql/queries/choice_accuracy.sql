-- grain: one row per (capture, task, scope, reduce, direction, sign, keep_first, layers, score, rate)
-- How often does the model pick the right choice, clean (scope none) and masked? Accuracy by summed and by mean log-probability with 95 % intervals, beside chance and the commonest label, and its change from the clean model.
-- $capture varchar = null: a capture's id; null takes every capture
-- $task varchar = null: a task, such as boolq; null takes every task
with of_items as (  -- random draws are one condition: what an item gets of it is their mean
    select
        capture, task, item, scope, reduce, direction, sign, keep_first, layers, score, rate,
        avg((picked = label)::integer) as correct,
        avg((picked_normalised = label)::integer) as correct_normalised,
        avg(margin) as margin,
        1 / any_value(n_choices) as chance,
        any_value(label) as label
    from choices
    where ($capture::varchar is null or capture = $capture) and ($task::varchar is null or task = $task)
    group by all
),
labels as (
    select capture, task, label, count(*) as n from of_items where scope = 'none' group by all
),
commonest as (
    select capture, task, max(n) / sum(n) as majority_share from labels group by all
),
beside_clean as (
    select
        o.*,
        o.correct - c.correct as change,
        o.correct_normalised - c.correct_normalised as change_normalised,
        o.margin - c.margin as change_margin
    from of_items as o
    join of_items as c on c.capture = o.capture and c.task = o.task and c.item = o.item and c.scope = 'none'
),
conditions as (
    select
        capture, task, scope, reduce, direction, sign, keep_first, layers, score, rate,
        count(*) as n_items,
        avg(correct) as accuracy,
        avg(correct_normalised) as accuracy_normalised,
        avg(chance) as chance,
        avg(change) as accuracy_change,
        1.96 * nullif(stddev_samp(change), 0) / sqrt(count(*)) as half,
        avg(change_normalised) as accuracy_normalised_change,
        1.96 * nullif(stddev_samp(change_normalised), 0) / sqrt(count(*)) as half_normalised,
        avg(margin) as margin_mean,
        avg(change_margin) as margin_change
    from beside_clean
    group by all
)
select
    capture, model, task, scope, reduce, direction, sign, keep_first, layers, score, rate, n_items,
    accuracy,
    wilson_lo(accuracy, n_items) as accuracy_lo,
    wilson_hi(accuracy, n_items) as accuracy_hi,
    accuracy_normalised,
    wilson_lo(accuracy_normalised, n_items) as accuracy_normalised_lo,
    wilson_hi(accuracy_normalised, n_items) as accuracy_normalised_hi,
    chance,
    majority_share,
    accuracy_change,
    accuracy_change - half as accuracy_change_lo,
    accuracy_change + half as accuracy_change_hi,
    accuracy_normalised_change,
    accuracy_normalised_change - half_normalised as accuracy_normalised_change_lo,
    accuracy_normalised_change + half_normalised as accuracy_normalised_change_hi,
    margin_mean,
    margin_change
from conditions
join commonest using (capture, task)
join captures using (capture)
order by capture, task, scope <> 'none', scope, reduce, sign, keep_first, layers, direction, rate, score
