-- grain: one row per (capture, layer, head)
-- At which scales along the causal lag does attention vary? Shares of energy at fine, middle and coarse scales beside those of uniform rows and of the document-shuffled ensemble, and the plain mass by lag.
-- Published (Zeris 2026, 6 layers): energy at a ≤ 7 in layers 1 and 2, at a ≥ 20 in layers 5 and 6. A scale is a width or a period, not a lag: what uniform rows show too is no structure, and `mass` says where attention looks.
-- $capture varchar = null: a capture's id; null takes every capture
-- $per_head boolean = false: single heads too, where they were asked for; false takes the mean of all heads alone
with energies as (
    -- NULL, and not 0, where no scale was taken in a range: they end at a quarter of the window unless told otherwise.
    select
        capture, layer, head, field,
        sum(energy_share::double) filter (where scale <= 7) as fine,
        sum(energy_share::double) filter (where scale > 7 and scale < 20) as middle,
        sum(energy_share::double) filter (where scale >= 20) as coarse,
        list(round(scale::double, 2) order by scale) filter (where dominant) as dominant_scales
    from scalogram
    where protocol = 'exact' and ($capture::varchar is null or capture = $capture) and ($per_head or head is null)
    group by capture, layer, head, field
    having count(energy_share) > 0
),
by_field as (
    select
        capture, layer, head,
        any_value(fine) filter (where field = 'observed') as fine_share,
        any_value(middle) filter (where field = 'observed') as middle_share,
        any_value(coarse) filter (where field = 'observed') as coarse_share,
        any_value(dominant_scales) filter (where field = 'observed') as dominant_scales,
        any_value(fine) filter (where field = 'uniform') as fine_share_uniform,
        any_value(coarse) filter (where field = 'uniform') as coarse_share_uniform,
        any_value(fine) filter (where field = 'doc_shuffle') as fine_share_shuffled,
        any_value(coarse) filter (where field = 'doc_shuffle') as coarse_share_shuffled,
        any_value(dominant_scales) filter (where field = 'doc_shuffle') as dominant_scales_shuffled
    from energies
    group by capture, layer, head
),
masses as (
    select
        capture, layer, head,
        coalesce(sum(mass::double) filter (where lag_lo < 8), 0) as mass_to_7,
        coalesce(sum(mass::double) filter (where lag_lo >= 8 and lag_lo < 20), 0) as mass_8_to_19,
        coalesce(sum(mass::double) filter (where lag_lo >= 20), 0) as mass_from_20
    from lag_mass
    group by capture, layer, head
)
select
    f.capture,
    model,
    f.layer,
    f.head,
    fine_share,
    middle_share,
    coarse_share,
    case
        when n_layers = 6 and f.head is null and f.layer < 2 then 'most at a ≤ 7'
        when n_layers = 6 and f.head is null and f.layer > 3 then 'most at a ≥ 20'
    end as energy_published,
    fine_share_uniform,
    coarse_share_uniform,
    fine_share_shuffled,
    coarse_share_shuffled,
    dominant_scales,
    dominant_scales_shuffled,
    mass_to_7,
    mass_8_to_19,
    mass_from_20
from by_field f
left join masses m on m.capture = f.capture and m.layer = f.layer and m.head is not distinct from f.head
join captures on captures.capture = f.capture
order by f.capture, f.layer, f.head nulls first
