-- Macros: saved in the catalog too, so that its views open in any DuckDB client.

-- A float column's value, with NaN (undefined: 0/0, log 0) as NULL. NaN sorts above every number and makes max and avg
-- NaN, so no view shows one. Not by isnan: DuckDB may answer that from a file's statistics, which leave NaN out.
create or replace macro nan_to_null(x) as case when isfinite(x) or isinf(x) then x end;

-- Perplexity from sums: exact for any group, which a mean of means is not. An aggregate.
create or replace macro perplexity(nll_sum, n_predicted) as exp(sum(nll_sum) / sum(n_predicted));

-- How far an identity of contribution weights may be off: 1e-5 where attention and value were stored as float32, 1e-3
-- where either was stored in 16 bits. From `value_dtype` and `config` of the table captures.
create or replace macro identity_tolerance(value_dtype, config) as
    case
        when value_dtype = 'float32' and json_extract_string(config, '$.store_dtypes.attention') = 'float32' then 1e-5
        else 1e-3
    end;

-- How far the sum of a row of attention may be off 1, learned sinks counted: rounding of each weight to the dtype in which
-- the model ran or the store keeps it. From `compute_dtype` and `config` of the table captures.
create or replace macro row_sum_tolerance(compute_dtype, config) as
    case
        when 'bfloat16' in (compute_dtype, json_extract_string(config, '$.store_dtypes.attention')) then 5e-3
        when 'float16' in (compute_dtype, json_extract_string(config, '$.store_dtypes.attention')) then 1e-3
        else 1e-5
    end;

-- Which document stands in a place of a bootstrap resample, both counted from 0; resample 0 is the sample itself. By md5,
-- so that it is the same in every version of DuckDB and with any number of threads.
create or replace macro resampled(resample, place, n_docs) as
    case
        when resample = 0 then place
        else (md5_number_lower(concat(resample, ':', place)) % n_docs)::bigint
    end;

-- How often each of n documents is in a bootstrap resample: a list in their order. A sum over the documents of the
-- resample is its list_dot_product with what they have, which adds in that order, so that no last bit depends on threads.
create or replace macro bootstrap_weights(resample, n_docs) as (
    select list(times::double order by document)
    from (
        select document, sum(hit) as times
        from (
            select place as document, 0 as hit from (select unnest(range(n_docs)) as place)
            union all
            select resampled(resample, place, n_docs), 1 from (select unnest(range(n_docs)) as place)
        )
        group by document
    )
);

-- The ends of a 95 % interval over bootstrap resamples, from the rows of all resamples; NULL for one document, which
-- resampling leaves as it is. Aggregates.
create or replace macro interval_lo(x, resample, n_docs) as
    quantile_cont(x, 0.025) filter (where resample > 0 and n_docs > 1);
create or replace macro interval_hi(x, resample, n_docs) as
    quantile_cont(x, 0.975) filter (where resample > 0 and n_docs > 1);

-- What a rate's value counts for in the mean height of a curve from (0, 0) to its highest rate, by trapezoids. `before`
-- and `after` are the rates next to it, NULL at the ends.
create or replace macro trapezoid_weight(before, rate, after, highest) as
    (coalesce(after, rate) - coalesce(before, 0)) / (2 * highest);

-- What damage says of a score, larger being more faithful: what removing the highest-ranked does, or how little removing
-- the lowest-ranked does.
create or replace macro faithfulness(direction, damage) as
    case direction when 'comprehensiveness' then damage when 'sufficiency' then -damage end;

-- The scores in the order in which they are listed: the published one first, from least to most faithful.
create or replace macro score_order() as
    ['raw', 'vw', 'vwon', 'cw_intra', 'cw_inter', 'norm', 'alti', 'rollout', 'random'];

create or replace macro in_published_order(score) as score in ('raw', 'vw', 'vwon', 'cw_intra', 'cw_inter');

-- The strategies of pruning in the order in which they are listed: the paper's own first, the control last.
create or replace macro strategy_order() as
    [
        'taxonomy', 'taxonomy_reset_retriever_mixer', 'taxonomy_mixer_reset_retriever', 'taxonomy_mixer_retriever_reset',
        'taxonomy_retriever_reset_mixer', 'taxonomy_retriever_mixer_reset', 'weight_magnitude', 'entropy_high',
        'entropy_low', 'contribution', 'f_score', 'h_star', 'random'
    ];

-- The modified z-score of Iglewicz & Hoaglin (1993): how far x stands from a median, in units of the median absolute
-- deviation that are standard deviations of normal values. NULL where the deviation is 0.
create or replace macro robust_z(x, median, deviation) as 0.6745 * (x - median) / nullif(deviation, 0);

-- How far x stands from the mean of draws, in their standard deviations. NULL with fewer than three draws, whose standard
-- deviation says next to nothing, and where it is 0.
create or replace macro draws_z(x, mean, sd, n_draws) as case when n_draws >= 3 then (x - mean) / nullif(sd, 0) end;

-- The same of whole numbers, with what rounding both adds (1/12 each in variance), so that draws which all agree do not
-- make it infinite, and a difference of 1 never counts for more than 2.4.
create or replace macro rank_z(x, mean, sd, n_draws) as draws_z(x, mean, sqrt(sd ** 2 + 1.0 / 6), n_draws);

-- How far the loss of one and the same computation may differ between batches, in nats a token. From `compute_dtype` of
-- the table captures.
create or replace macro loss_tolerance(compute_dtype) as case when compute_dtype = 'float32' then 1e-5 else 2e-2 end;

-- Whether a text names layers as the tables do: all, or numbers and ranges such as 3,10-19.
create or replace macro is_layers(text) as regexp_full_match(text, 'all|\d+(-\d+)?(,\d+(-\d+)?)*');

-- The ends of the 95 % interval of a share p of n that are independent (Wilson 1927): inside 0 … 1 even where p is 0 or 1.
create or replace macro wilson_lo(p, n) as
    greatest(0, (p + 1.9208 / n - 1.96 * sqrt(p * (1 - p) / n + 0.9604 / n ** 2)) / (1 + 3.8416 / n));
create or replace macro wilson_hi(p, n) as
    least(1, (p + 1.9208 / n + 1.96 * sqrt(p * (1 - p) / n + 0.9604 / n ** 2)) / (1 + 3.8416 / n));

-- One damage in units of another; NULL where the other is none, so that nothing follows from the divisor alone.
create or replace macro damage_ratio(damage, other) as case when other > 0 then damage / other end;

-- The unit roundoff of a dtype: the largest relative error of one rounding to it. From `compute_dtype` of the table captures.
create or replace macro unit_roundoff(compute_dtype) as
    case compute_dtype when 'float32' then 2.0 ** -24 when 'float16' then 2.0 ** -11 else 2.0 ** -8 end;

-- The share of a damage that is gone, in percent; NULL where the damage is below 0.01 nats a token. Sums in nats.
create or replace macro recovery(recovered, damage, n_predicted) as
    case when damage >= 0.01 * n_predicted then 100 * recovered / damage end;

-- The first of the layers that a text names, as the tables do.
create or replace macro first_layer(text) as
    case when text = 'all' then 0 else regexp_extract(text, '^\d+')::integer end;
