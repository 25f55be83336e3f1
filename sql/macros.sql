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

-- The ends of the 95 % interval of a share p of n that are independent (Wilson 1927): inside 0 … 1 even where p is 0 or 1.
create or replace macro wilson_lo(p, n) as
    greatest(0, (p + 1.9208 / n - 1.96 * sqrt(p * (1 - p) / n + 0.9604 / n ** 2)) / (1 + 3.8416 / n));
create or replace macro wilson_hi(p, n) as
    least(1, (p + 1.9208 / n + 1.96 * sqrt(p * (1 - p) / n + 0.9604 / n ** 2)) / (1 + 3.8416 / n));
