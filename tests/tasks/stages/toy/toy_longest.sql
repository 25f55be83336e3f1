-- grain: one row per (capture, layer, head, norm)
-- Which head has the longest value?
-- $capture varchar = null: a capture's id; null takes all
select capture, layer, head, norm, max(longest) as longest
from toy
where $capture::varchar is null or capture = $capture
group by all
order by longest desc
