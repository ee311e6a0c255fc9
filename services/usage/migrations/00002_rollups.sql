-- +goose Up
-- ClickHouse has no transactions for this: each statement may run again after a death in between.
-- What a sandbox was given, and how much of an exec's output is recorded.
ALTER TABLE agents.usage_events_raw
    ADD COLUMN IF NOT EXISTS cpu_limit_millis   UInt64 CODEC(T64, ZSTD(1)) AFTER schema_version,
    ADD COLUMN IF NOT EXISTS memory_limit_bytes UInt64 CODEC(T64, ZSTD(1)) AFTER cpu_limit_millis,
    ADD COLUMN IF NOT EXISTS workspace_bytes    UInt64 CODEC(T64, ZSTD(1)) AFTER memory_limit_bytes,
    ADD COLUMN IF NOT EXISTS output_kept_bytes  UInt64 CODEC(T64, ZSTD(1)) AFTER workspace_bytes,
    ADD INDEX IF NOT EXISTS by_sequence stream_seq TYPE minmax GRANULARITY 1;

-- One row for each fact of a sandbox or workspace, by itself: figures are cumulative over the sandbox's life.
CREATE VIEW IF NOT EXISTS agents.usage_readings AS
SELECT
    event_id, stream_seq, event_type, outcome AS kind, tenant_id, session_id, org_id, sandbox_id, occurred_at,
    wall_time_ms AS uptime_ms, cpu_ms, memory_avg_bytes, disk_read_bytes, disk_write_bytes, network_egress_bytes, network_ingress_bytes,
    cpu_limit_millis, memory_limit_bytes, workspace_bytes, schema_version
FROM agents.usage_events_raw FINAL
WHERE event_type IN ('sandbox_reading', 'workspace_reading')
SETTINGS do_not_merge_across_partitions_select_final = 0;

-- Quantities by hour. A row is computed anew from the facts whenever one of them comes, and replaces the one before: nothing is ever
-- added to a row, so an insert that happens twice changes nothing. A quantity that is no more has a row of zero.
CREATE TABLE IF NOT EXISTS agents.usage_hourly_raw
(
    tenant_id  LowCardinality(String),
    sandbox_id UUID,
    session_id String CODEC(ZSTD(1)),
    meter      LowCardinality(String),
    hour       DateTime('UTC') CODEC(Delta, ZSTD(1)),
    quantity   UInt64 CODEC(T64, ZSTD(1)),
    -- Sequence of the last event that it takes into account, and behind it the version of the mapping.
    revision   UInt64 CODEC(Delta, ZSTD(1)),
    INDEX by_hour hour TYPE minmax GRANULARITY 1,
    INDEX by_revision revision TYPE minmax GRANULARITY 1
)
ENGINE = ReplacingMergeTree(revision)
PARTITION BY toYYYYMM(hour)
ORDER BY (tenant_id, sandbox_id, session_id, meter, hour)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

CREATE TABLE IF NOT EXISTS agents.usage_daily_raw
(
    tenant_id  LowCardinality(String),
    day        Date CODEC(Delta, ZSTD(1)),
    sandbox_id UUID,
    session_id String CODEC(ZSTD(1)),
    meter      LowCardinality(String),
    quantity   UInt64 CODEC(T64, ZSTD(1)),
    revision   UInt64 CODEC(Delta, ZSTD(1))
)
ENGINE = ReplacingMergeTree(revision)
PARTITION BY toYYYYMM(day)
ORDER BY (tenant_id, day, sandbox_id, session_id, meter)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- Hours of each tenant: when one was closed, and when it was changed last.
CREATE TABLE IF NOT EXISTS agents.usage_windows_raw
(
    tenant_id   LowCardinality(String),
    hour        DateTime('UTC') CODEC(Delta, ZSTD(1)),
    -- Up to which sequence the log was read when the hour was closed for the first time; 0: it is open.
    closed_seq  UInt64 CODEC(T64, ZSTD(1)),
    changed_seq UInt64 CODEC(T64, ZSTD(1)),
    revision    UInt64 CODEC(Delta, ZSTD(1))
)
ENGINE = ReplacingMergeTree(revision)
ORDER BY (tenant_id, hour)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- One row: up to where all of the above are complete.
CREATE TABLE IF NOT EXISTS agents.usage_rollup
(
    name       LowCardinality(String),
    life       String,
    stream_seq UInt64,
    -- The log's clock there.
    at         DateTime64(3, 'UTC'),
    revision   UInt64
)
ENGINE = ReplacingMergeTree(revision)
ORDER BY name
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- Sandboxes of which a row came behind the sequence up to which everything was complete.
CREATE TABLE IF NOT EXISTS agents.usage_late
(
    tenant_id  LowCardinality(String),
    sandbox_id UUID,
    note       UUID DEFAULT generateUUIDv4()
)
ENGINE = MergeTree
ORDER BY (tenant_id, sandbox_id)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- What meters cost. Rows are added, never changed: a price that was wrong gets a higher version.
CREATE TABLE IF NOT EXISTS agents.usage_prices
(
    -- Empty: for all tenants that have no price of their own.
    tenant_id  LowCardinality(String),
    meter      LowCardinality(String),
    valid_from DateTime('UTC'),
    version    UInt32,
    -- Billionths of the currency for so many units of the meter.
    nanos      UInt64,
    per        UInt64,
    currency   LowCardinality(String),
    CONSTRAINT whole CHECK per > 0 AND valid_from = toStartOfHour(valid_from, 'UTC') AND match(currency, '^[A-Z]{3}$')
)
ENGINE = ReplacingMergeTree
ORDER BY (tenant_id, meter, valid_from, version);

CREATE VIEW IF NOT EXISTS agents.usage_hourly AS
SELECT tenant_id, hour, sandbox_id, session_id, meter, quantity, revision
FROM agents.usage_hourly_raw FINAL
WHERE quantity > 0;

CREATE VIEW IF NOT EXISTS agents.usage_daily AS
SELECT tenant_id, day, sandbox_id, session_id, meter, quantity, revision
FROM agents.usage_daily_raw FINAL
WHERE quantity > 0;

CREATE VIEW IF NOT EXISTS agents.usage_windows AS
SELECT tenant_id, hour, multiIf(closed_seq = 0, 'open', changed_seq > closed_seq, 'reopened', 'closed') AS state, closed_seq, changed_seq
FROM agents.usage_windows_raw FINAL;

-- Of each tenant: every hour before final_until is closed, as of the events up to final_seq.
CREATE VIEW IF NOT EXISTS agents.usage_watermarks AS
SELECT w.tenant_id AS tenant_id, if(countIf(closed_seq = 0) > 0, minIf(w.hour, closed_seq = 0), max(w.hour) + INTERVAL 1 HOUR) AS final_until,
       countIf(closed_seq > 0 AND changed_seq > closed_seq) AS reopened,
       any(r.stream_seq) AS final_seq, any(r.at) AS as_of
FROM (SELECT * FROM agents.usage_windows_raw FINAL) AS w
CROSS JOIN (SELECT stream_seq, at FROM agents.usage_rollup FINAL) AS r
GROUP BY w.tenant_id;

-- Lines of invoices: each month of a tenant, by meter and price. An amount is rounded down once, to a billionth.
CREATE VIEW IF NOT EXISTS agents.invoice_lines AS
WITH
    prices AS (
        SELECT tenant_id, meter, valid_from, argMax((version, nanos, per, currency), version) AS price
        FROM agents.usage_prices FINAL
        GROUP BY tenant_id, meter, valid_from
    ),
    own AS (SELECT tenant_id, meter, valid_from, price FROM prices WHERE tenant_id != ''),
    common AS (SELECT meter, valid_from, price FROM prices WHERE tenant_id = ''),
    hours AS (
        SELECT h.tenant_id AS tenant_id, h.meter AS meter, h.hour AS hour, h.quantity AS quantity, o.valid_from AS own_from, o.price AS own_price
        FROM (SELECT tenant_id, meter, hour, sum(quantity) AS quantity FROM agents.usage_hourly GROUP BY tenant_id, meter, hour) AS h
        ASOF LEFT JOIN own AS o ON h.tenant_id = o.tenant_id AND h.meter = o.meter AND h.hour >= o.valid_from
    ),
    priced AS (
        SELECT h.tenant_id AS tenant_id, h.meter AS meter, h.hour AS hour, h.quantity AS used,
               if(h.own_price.3 > 0, h.own_from, c.valid_from) AS valid_from, if(h.own_price.3 > 0, h.own_price, c.price) AS price,
               h.own_price.3 > 0 AS agreed
        FROM hours AS h
        ASOF LEFT JOIN common AS c ON h.meter = c.meter AND h.hour >= c.valid_from
    )
SELECT tenant_id, toStartOfMonth(hour) AS month, meter, sum(used) AS quantity, price.2 AS nanos, price.3 AS per, price.4 AS currency,
       agreed, valid_from AS price_from, price.1 AS price_version,
       toUInt256(intDiv(toUInt256(sum(used)) * price.2, price.3)) AS amount_nanos,
       toDecimal256(amount_nanos, 0) * toDecimal256('0.000000001', 9) AS amount
FROM priced
WHERE price.3 > 0
GROUP BY tenant_id, month, meter, agreed, valid_from, price;

-- +goose Down
DROP VIEW IF EXISTS agents.invoice_lines;
DROP VIEW IF EXISTS agents.usage_watermarks;
DROP VIEW IF EXISTS agents.usage_windows;
DROP VIEW IF EXISTS agents.usage_daily;
DROP VIEW IF EXISTS agents.usage_hourly;
DROP VIEW IF EXISTS agents.usage_readings;
DROP TABLE IF EXISTS agents.usage_prices;
DROP TABLE IF EXISTS agents.usage_late;
DROP TABLE IF EXISTS agents.usage_rollup;
DROP TABLE IF EXISTS agents.usage_windows_raw;
DROP TABLE IF EXISTS agents.usage_daily_raw;
DROP TABLE IF EXISTS agents.usage_hourly_raw;
ALTER TABLE agents.usage_events_raw
    DROP INDEX IF EXISTS by_sequence,
    DROP COLUMN IF EXISTS cpu_limit_millis,
    DROP COLUMN IF EXISTS memory_limit_bytes,
    DROP COLUMN IF EXISTS workspace_bytes,
    DROP COLUMN IF EXISTS output_kept_bytes;
