-- Rows of hours that are not as they stand.
SELECT tenant_id, sandbox_id, session_id, meter, toDateTime(intDiv(start, 1000), 'UTC') AS hour, sum(fresh) AS quantity, toUInt64(?) AS revision
FROM
(
    SELECT p.tenant_id AS tenant_id, p.sandbox_id AS sandbox_id, p.session_id AS session_id, p.meter AS meter, p.hour AS start,
           p.quantity AS fresh, toUInt64(0) AS stands
    FROM pieces AS p
    UNION ALL
    SELECT tenant_id, sandbox_id, session_id, meter, toInt64(toUnixTimestamp(hour)) * 1000, 0, quantity
    FROM agents.usage_hourly_raw FINAL
    WHERE (tenant_id, sandbox_id) IN (SELECT tenant_id, sandbox_id FROM dirty)
) AS u
INNER JOIN dirty AS d ON u.tenant_id = d.tenant_id AND u.sandbox_id = d.sandbox_id
WHERE start >= if(startsWith(meter, 'exec') OR meter = 'output_kept', d.exec, d.box)
GROUP BY tenant_id, sandbox_id, session_id, meter, start
HAVING sum(fresh) != sum(stands)
