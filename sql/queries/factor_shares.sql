-- grain: one row per (capture, layer, token_group)
-- What decides a contribution weight: attention, value norm, or direction? Shares of the spread of log |cw_intra|, weighted by entries.
-- No figure is published for these shares.
-- $capture varchar = null: a capture's id; null takes every capture
-- $per_layer boolean = false: one row per layer; false takes all layers together, with layer null
with grouped as (
    select *, case when $per_layer::boolean then layer end as shown_layer
    from contribution_factors
    where $capture::varchar is null or capture = $capture
),
weighted as (
    select
        capture, shown_layer as layer, token_group,
        count(*) as n_heads,
        sum(n)::bigint as n_entries,
        sum(n * share_alpha::double) / sum(n) filter (where share_alpha is not null) as share_alpha,
        sum(n * share_norm::double) / sum(n) filter (where share_norm is not null) as share_norm,
        sum(n * share_cosine::double) / sum(n) filter (where share_cosine is not null) as share_cosine,
        sum(n * mean_alpha::double) / sum(n) filter (where mean_alpha is not null) as mean_alpha,
        sum(n * mean_relative_norm::double) / sum(n) filter (where mean_relative_norm is not null) as mean_relative_norm,
        sum(n * mean_cosine::double) / sum(n) filter (where mean_cosine is not null) as mean_cosine,
        sum(n * mean_cw::double) / sum(n) filter (where mean_cw is not null) as mean_cw
    from grouped
    group by capture, shown_layer, token_group
)
select
    capture,
    model,
    layer,
    token_group,
    weighted.n_heads,
    n_entries,
    share_alpha,
    share_norm,
    share_cosine,
    mean_alpha,
    mean_relative_norm,
    mean_cosine,
    mean_cw
from weighted
join captures using (capture)
order by capture, layer nulls first, list_position(['sink', 'self', 'tail'], token_group)
