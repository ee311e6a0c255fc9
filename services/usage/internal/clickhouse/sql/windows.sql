-- Windows that have changed, and those whose time to be closed has come.
INSERT INTO agents.usage_windows_raw (tenant_id, hour, closed_seq, changed_seq, revision)
SELECT tenant_id, hour, multiIf(closed > 0, closed, ripe, upto, 0) AS closed_seq, if(fresh > 0, upto, altered) AS changed_seq, version AS revision
FROM
(
    SELECT tenant_id, hour, max(closed_seq) AS closed, max(changed_seq) AS altered, max(changed) AS fresh, toUInt64(?) AS upto,
           toUInt64(?) AS version, toInt64(toUnixTimestamp(hour)) * 1000 + 3600000 <= toInt64(?) AS ripe
    FROM
    (
        SELECT tenant_id, hour, toUInt64(0) AS closed_seq, toUInt64(0) AS changed_seq, 1 AS changed
        FROM agents.usage_hourly_raw
        WHERE revision > ?
        GROUP BY tenant_id, hour
        UNION ALL
        SELECT tenant_id, hour, closed_seq, changed_seq, 0
        FROM agents.usage_windows_raw FINAL
    )
    GROUP BY tenant_id, hour
)
WHERE fresh > 0 OR (closed = 0 AND ripe)
