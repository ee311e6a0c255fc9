-- Spans of the sandboxes in dirty, as libs/metering makes them: beg and till in Unix milliseconds, and of each meter n and m. After t
-- milliseconds of a span it is n x t / m, rounded down; with m = 0 all of it is at once.
dirty AS (
    SELECT d.1 AS tenant_id, toUUID(d.2) AS sandbox_id, toInt64(d.3) AS box, toInt64(d.4) AS exec
    FROM (SELECT arrayJoin(arrayZip(?, ?, ?, ?)) AS d)
),
readings AS (
    SELECT tenant_id, sandbox_id, session_id, stream_seq AS seq, event_type, outcome AS kind, toUnixTimestamp64Milli(occurred_at) AS at,
           wall_time_ms AS ms, cpu_ms, memory_avg_bytes, disk_read_bytes, disk_write_bytes, network_egress_bytes, network_ingress_bytes,
           cpu_limit_millis, memory_limit_bytes, workspace_bytes
    FROM agents.usage_events_raw FINAL
    WHERE (tenant_id, sandbox_id) IN (SELECT tenant_id, sandbox_id FROM dirty WHERE box < {never})
      AND event_type IN ('sandbox_reading', 'workspace_reading') AND stream_seq <= {upto}
),
-- Counters never go back, whatever a reading says.
grown AS (
    SELECT *, max(ms) OVER w AS ms_now, max(cpu_ms) OVER w AS cpu_now, max(disk_read_bytes) OVER w AS read_now,
           max(disk_write_bytes) OVER w AS write_now, max(network_egress_bytes) OVER w AS egress_now, max(network_ingress_bytes) OVER w AS ingress_now,
           countIf(kind = 'ready') OVER w AS run
    FROM readings
    WHERE event_type = 'sandbox_reading'
    WINDOW w AS (PARTITION BY tenant_id, sandbox_id ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
),
held AS (
    SELECT *, max({fit}intDiv(toUInt128(memory_avg_bytes) * toUInt128(ms_now), 1048576){tif}) OVER (
           PARTITION BY tenant_id, sandbox_id ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS memory_now
    FROM grown
),
stepped AS (
    SELECT *, lagInFrame(ms_now) OVER w AS ms_was, toUInt64(ms_now - ms_was) AS raw,
           least(raw, {longest}, if(kind = 'failed', greatest(300000, least(intDiv(ms_was, 10), 7200000)), {longest})) AS counted,
           toUInt64(cpu_now - lagInFrame(cpu_now) OVER w) AS cpu, toUInt64(memory_now - lagInFrame(memory_now) OVER w) AS memory,
           toUInt64(read_now - lagInFrame(read_now) OVER w) AS read, toUInt64(write_now - lagInFrame(write_now) OVER w) AS written,
           toUInt64(egress_now - lagInFrame(egress_now) OVER w) AS egress, toUInt64(ingress_now - lagInFrame(ingress_now) OVER w) AS ingress
    FROM held
    WINDOW w AS (PARTITION BY tenant_id, sandbox_id ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
),
placed AS (
    SELECT *, if(run > 0, first_value(at) OVER w + toInt64(sum(counted) OVER w), at) AS till, if(run > 0, till - toInt64(counted), at) AS beg
    FROM stepped
    WINDOW w AS (PARTITION BY tenant_id, sandbox_id, run ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
),
boxes AS (
    SELECT tenant_id, sandbox_id, session_id, seq, beg, till, part.1 AS meter, part.2 AS n, toUInt64(till - beg) AS m
    FROM placed
    ARRAY JOIN [
        ('sandbox_uptime', counted),
        ('sandbox_cpu_allocated', {fit}toUInt128(cpu_limit_millis) * counted{tif}),
        ('sandbox_cpu_used', {fit}toUInt128(cpu) * 1000{tif}),
        ('sandbox_memory_allocated', {fit}intDiv(toUInt128(memory_limit_bytes) * counted, 1048576){tif}),
        ('sandbox_memory_used', if(counted < raw, {fit}intDiv(toUInt128(memory) * counted, toUInt128(greatest(raw, 1))){tif}, memory)),
        ('sandbox_disk_read', read), ('sandbox_disk_write', written),
        ('sandbox_network_egress', egress), ('sandbox_network_ingress', ingress)
    ] AS part
    WHERE kind != 'ready' AND part.2 > 0
),
storage AS (
    SELECT tenant_id, sandbox_id, argMinIf(session_id, seq, kind = 'ready') AS whose, maxIf(seq, kind IN ('ready', 'deleted')) AS closing,
           argMinIf(at, seq, kind = 'ready') AS beg, least(minIf(at, kind = 'deleted') + if(countIf(kind = 'deleted') = 0, {never}, 0), {until}) AS till,
           'workspace_storage' AS meter, argMinIf(workspace_bytes, seq, kind = 'ready') AS n, toUInt64(1048576) AS m
    FROM readings
    GROUP BY tenant_id, sandbox_id
    HAVING countIf(kind = 'ready') > 0 AND n > 0 AND till > beg
),
ended AS (
    SELECT e.tenant_id AS tenant_id, e.sandbox_id AS sandbox_id, e.session_id AS session_id, e.stream_seq AS seq,
           toUnixTimestamp64Milli(e.occurred_at) AS till, least(e.wall_time_ms, {longest}) AS wall, e.cpu_ms AS cpu, e.memory_avg_bytes AS memory,
           e.disk_read_bytes AS read, e.disk_write_bytes AS written, e.network_egress_bytes AS egress, e.network_ingress_bytes AS ingress,
           e.output_kept_bytes AS kept
    FROM (
        SELECT * FROM agents.usage_events_raw FINAL
        WHERE (tenant_id, sandbox_id) IN (SELECT tenant_id, sandbox_id FROM dirty WHERE exec < {never})
          AND event_type = 'exec_command' AND stream_seq <= {upto}
    ) AS e
    INNER JOIN dirty AS d ON e.tenant_id = d.tenant_id AND e.sandbox_id = d.sandbox_id
    WHERE toUnixTimestamp64Milli(e.occurred_at) >= d.exec
),
execs AS (
    SELECT tenant_id, sandbox_id, session_id, seq, till - toInt64(wall) AS beg, till, part.1 AS meter, part.2 AS n, wall AS m
    FROM ended
    ARRAY JOIN [
        ('execs', toUInt64(1)), ('exec_wall', wall), ('exec_cpu', {fit}toUInt128(cpu) * 1000{tif}),
        ('exec_memory', {fit}intDiv(toUInt128(memory) * wall, 1048576){tif}),
        ('exec_disk_read', read), ('exec_disk_write', written), ('exec_network_egress', egress), ('exec_network_ingress', ingress),
        ('output_kept', kept)
    ] AS part
    WHERE part.2 > 0
),
spans AS (
    SELECT tenant_id, sandbox_id, session_id, seq, beg, till, meter, n, m FROM boxes
    UNION ALL SELECT tenant_id, sandbox_id, whose, closing, beg, till, meter, n, m FROM storage
    UNION ALL SELECT tenant_id, sandbox_id, session_id, seq, beg, till, meter, n, m FROM execs
),
-- Each hour of each span.
pieces AS (
    SELECT tenant_id, sandbox_id, session_id, seq, beg, till, meter, n, m,
           arrayJoin(if(till <= beg, [intDiv(beg, 3600000) * 3600000], range(intDiv(beg, 3600000) * 3600000, till, 3600000))) AS hour,
           toUInt128(least(hour + 3600000, till) - beg) AS ends, toUInt128(greatest(hour, beg) - beg) AS begins,
           if(m = 0, n, toUInt64({fit}intDiv(toUInt128(n) * ends, toUInt128(greatest(m, 1))){tif} - {fit}intDiv(toUInt128(n) * begins, toUInt128(greatest(m, 1))){tif})) AS quantity
    FROM spans
)
