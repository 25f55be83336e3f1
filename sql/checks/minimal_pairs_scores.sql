-- grain: one row per (capture, task, item, protocol, arm, pair_noise, delta, delta_kind, layers, first_token, seed)
-- Log-probabilities are at most 0, of one token at least, and the pair is right where the grammatical sentence's is the larger; the clean model moves no token, and no other row leaves more alone than there are.
-- $everything boolean = false: all rows checked, instead of those that break it
with measured as (
    select
        capture, task, item, protocol, arm, pair_noise, delta, delta_kind, layers, first_token, seed,
        (not coalesce(
            logp_good <= 1e-3 and logp_bad <= 1e-3
            and correct = (logp_good > logp_bad)
            and n_good >= 1 and n_bad >= 1
            and unmoved between 0 and n_tokens
            and (arm = 'none') = (n_tokens = 0)
            and (arm = 'none') = (delta = 0)
            and delta >= 0, false
        ))::integer as error,
        0 as tolerance
    from minimal_pairs
)
select * from measured where $everything or not coalesce(error <= tolerance, false)
