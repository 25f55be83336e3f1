-- grain: one row per (capture, rule, class)
-- How many heads are Retrievers, Mixers and Resets? Counts and shares per model and corpus, with how clear the classes are. A head's class says where its heaviest contribution stands more often than elsewhere (plurality): a Retriever's at the query's own token, a Mixer's at the first token, a Reset's at any other.
-- Published (Mudarisov et al. 2026): 5.8 to 17.2 % Retrievers; Mixers are most common in Gemma and LLaMA-3, Resets in Mistral and LLaMA-2.
-- $capture varchar = null: a capture's id; null takes every capture
-- $layer integer = null: a layer, counted from 0; null takes every layer
with chosen as (
    select * from taxonomy
    where ($capture::varchar is null or capture = $capture) and ($layer::integer is null or layer = $layer)
),
runs as (
    select capture, rule, count(*) as n_tallied from chosen group by capture, rule
),
counted as (
    select
        capture, rule, class,
        count(*) as n_classed,
        avg(margin::double) as margin_mean,
        avg(agreement_halves::double) as agreement_halves_mean
    from chosen
    group by capture, rule, class
)
select
    capture,
    model,
    corpus,
    rule,
    class,
    coalesce(n_classed, 0) as n_heads,
    coalesce(n_classed, 0) / n_tallied as share,
    case class when 'retriever' then '0.058 to 0.172' end as share_published,
    margin_mean,
    agreement_halves_mean
from runs
cross join (select unnest(['retriever', 'mixer', 'reset']) as class)
left join counted using (capture, rule, class)
join captures using (capture)
order by capture, list_position(['plurality', 'majority', 'final_query'], rule), list_position(['retriever', 'mixer', 'reset'], class)
