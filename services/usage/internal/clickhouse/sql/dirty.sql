-- Sandboxes whose hours have to be computed anew, and from which hour on (Unix milliseconds; {never}: not at all): box of what is
-- made from readings, exec of what is made from execs.
SELECT tenant_id, sandbox_id, min(box), min(exec)
FROM
(
    SELECT tenant_id, sandbox_id,
           if(event_type = 'exec_command', {never}, 0) AS box,
           if(event_type = 'exec_command', intDiv(toUnixTimestamp64Milli(occurred_at) - toInt64(least(wall_time_ms, {longest})), 3600000) * 3600000, {never}) AS exec
    FROM agents.usage_events_raw
    WHERE stream_seq > ? AND stream_seq <= ? AND event_type != 'sandbox_uptime'
    UNION ALL
    SELECT tenant_id, sandbox_id, 0, 0 FROM agents.usage_late
    UNION ALL
    -- Workspaces that are kept cost from hour to hour without any event, and one that was removed in an hour which was not over yet does
    -- so in that one.
    SELECT tenant_id, sandbox_id, toInt64(?), {never}
    FROM agents.usage_events_raw
    WHERE ? AND event_type IN ('sandbox_reading', 'workspace_reading') AND stream_seq <= ?
    GROUP BY tenant_id, sandbox_id
    HAVING countIf(outcome = 'ready') > 0 AND countIf(outcome = 'deleted' AND toUnixTimestamp64Milli(occurred_at) <= toInt64(?)) = 0
)
GROUP BY tenant_id, sandbox_id
ORDER BY tenant_id, sandbox_id
