-- grain: one row per (capture, other, rule)
-- Does a head keep its class? Agreement of document halves, and Cohen's κ with every capture of the same model on another corpus (other; NULL where there is none).
-- No figure is published for either.
-- $capture varchar = null: a capture's id; null takes every capture
with runs as (
    select taxonomy.*, model, model_digest, corpus, corpus_digest
    from taxonomy
    join captures using (capture)
),
halves as (
    select
        capture, model, model_digest, corpus, corpus_digest, rule,
        count(*) as n_heads,
        avg(agreement_halves::double) as agreement_halves_mean
    from runs
    where $capture::varchar is null or capture = $capture
    group by all
),
pairs as (
    select
        a.capture, b.capture as other, b.corpus as other_corpus, a.rule,
        count(*) as n_common,
        avg((a.class = b.class)::integer) as agreement,
        list(a.class) as classes,
        list(b.class) as other_classes
    from runs as a
    join runs as b
        on a.model_digest = b.model_digest and a.corpus_digest <> b.corpus_digest
        and a.rule = b.rule and a.layer = b.layer and a.head = b.head
    where $capture::varchar is null or a.capture = $capture
    group by a.capture, b.capture, b.corpus, a.rule
),
chances as (
    select
        *,
        list_sum([
            len(list_filter(classes, lambda c: c = class)) * len(list_filter(other_classes, lambda c: c = class))
            for class in ['retriever', 'mixer', 'reset']
        ]) / (n_common * n_common)::double as chance
    from pairs
)
select
    halves.capture,
    model,
    corpus,
    other,
    other_corpus,
    halves.rule,
    n_heads,
    agreement_halves_mean,
    n_common,
    agreement,
    chance as agreement_by_chance,
    (agreement - chance) / nullif(1 - chance, 0) as kappa
from halves
left join chances on halves.capture = chances.capture and halves.rule = chances.rule
order by halves.capture, other nulls first, list_position(['plurality', 'majority', 'final_query'], halves.rule)
