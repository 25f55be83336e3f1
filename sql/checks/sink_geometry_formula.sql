-- grain: one row per (capture, doc, layer, head, query)
-- a* = (‖m‖² − ⟨s,m⟩)/‖s−m‖², the norm there, and whether a* is interior follow from the row's two norms and cosine.
-- $everything boolean = false: all rows checked, instead of those that break it
with products as (
    select
        capture, doc, layer, head, query, a_star, min_norm::double as min_norm, interior,
        sink_norm::double ** 2 as ss,
        tail_norm::double ** 2 as mm,
        coalesce(cosine_sink_tail::double, 0) * sink_norm * tail_norm as sm
    from sink_geometry
),
compared as (
    select
        *,
        -- Multiplied out, so that a small ‖s−m‖ does not magnify the rounding of the float32 columns.
        abs(a_star * (ss + mm - 2 * sm) - (mm - sm)) as a_star_gap,
        (ss + mm) * (1 + abs(a_star)) as a_star_scale,
        abs(min_norm ** 2 * (ss + mm - 2 * sm) - (ss * mm - sm ** 2)) as min_norm_gap,
        ss * mm + min_norm ** 2 * (ss + mm) as min_norm_scale,
        -- An a* that float32 rounds to 0 or 1 may be on either side of it.
        least(abs(a_star), abs(a_star - 1)) > 1e-6 and interior is distinct from (a_star between 0 and 1) as misjudged
    from products
),
measured as (
    select
        capture, doc, layer, head, query,
        case
            -- Undefined where nothing but the sink is attended to, or where s = m.
            when a_star is null then case when mm is null or ss + mm - 2 * sm <= 1e-5 * (ss + mm) then 0 end
            when misjudged or min_norm is null then null
            else greatest(
                a_star_gap / a_star_scale,
                case when min_norm_scale > 0 then min_norm_gap / min_norm_scale else 0 end
            )
        end as error,
        1e-5 as tolerance
    from compared
)
select * from measured where $everything or not coalesce(error <= tolerance, false)
