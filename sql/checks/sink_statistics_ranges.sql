-- grain: one row per (capture, doc, layer, head)
-- Lengths are not negative, cosines lie between −1 and 1, and a mean cosine is not beyond the largest.
-- $everything boolean = false: all rows checked, instead of those that break it
with measured as (
    select
        capture, doc, layer, head,
        greatest(
            0, -coalesce(norm_ratio, 0), -coalesce(norm_cv, 0), abs(coalesce(mean_cosine, 0)) - 1,
            coalesce(coherence_max, 0) - 1, abs(coalesce(coherence_mean, 0)) - coalesce(coherence_max, 0)
        ) as error,
        1e-6 as tolerance
    from sink_statistics
)
select * from measured where $everything or not coalesce(error <= tolerance, false)
