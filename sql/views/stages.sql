-- grain: one row per (capture, stage, key)
-- One run of a stage under one key; the key asked for last is the one whose rows the other views show.
select
    capture,       -- the capture's id
    stage_key,     -- key of the stage run that wrote the row, 64 hex digits
    stage,         -- name of the stage; the capture itself is the stage capture
    key,           -- the stage's key, as in stage_key
    version,       -- version of the stage's code that enters the key
    case
        when key in (select current_keys.key from current_keys) then status else 'stale'
    end as status, -- done, partial (shards are missing), failed, or stale: another key was asked for later
    params,        -- the stage's parameters (JSON)
    shards_done,   -- number of shards published
    shards_total,  -- number of shards of the capture
    rows,          -- number of rows published in all tables of the stage
    requested_at,  -- when this key was last asked for, UTC, ISO 8601
    started_at,    -- when work began, UTC, ISO 8601
    finished_at,   -- when work ended, UTC, ISO 8601; NULL while it runs
    quality        -- what the stage left out or could not define, counted (JSON)
from parts
