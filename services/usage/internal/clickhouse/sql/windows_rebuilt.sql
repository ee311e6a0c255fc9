-- Windows as of a mark, for tables that are made anew: what was closed by then keeps its sequence, and what is not as it stands is reopened.
INSERT INTO {shadow}.usage_windows_raw (tenant_id, hour, closed_seq, changed_seq, revision)
SELECT tenant_id, hour, multiIf(closed > 0, closed, ripe, upto, 0) AS closed_seq, if(fresh > 0, greatest(upto, if(closed > 0, closed + 1, 0)), altered) AS changed_seq, version AS revision
FROM
(
    SELECT tenant_id, hour, max(closing) AS closed, max(changed_seq) AS altered, max(changed) AS fresh, toUInt64(?) AS upto,
           toUInt64(?) AS version, toInt64(toUnixTimestamp(hour)) * 1000 + 3600000 <= toInt64(?) AS ripe
    FROM
    (
        SELECT tenant_id, hour, if(closed_seq > ?, 0, closed_seq) AS closing, changed_seq, 0 AS changed FROM {live}.usage_windows_raw FINAL
        UNION ALL
        SELECT tenant_id, hour, toUInt64(0), toUInt64(0), 1
        FROM
        (
            SELECT tenant_id, sandbox_id, session_id, meter, hour, toInt256(quantity) AS more FROM {shadow}.usage_hourly_raw FINAL
            UNION ALL
            SELECT tenant_id, sandbox_id, session_id, meter, hour, -toInt256(quantity) FROM {live}.usage_hourly_raw FINAL
        )
        GROUP BY tenant_id, sandbox_id, session_id, meter, hour
        HAVING sum(more) != 0
        UNION ALL
        SELECT tenant_id, hour, toUInt64(0), toUInt64(0), 0 FROM {shadow}.usage_hourly_raw WHERE quantity > 0 GROUP BY tenant_id, hour
    )
    GROUP BY tenant_id, hour
)
