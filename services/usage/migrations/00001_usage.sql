-- +goose Up
CREATE DATABASE IF NOT EXISTS agents;

-- One row for each fact that costs something. Only the projector writes here; people read the views below.
--
-- Sort key: it is what identifies a row, because ReplacingMergeTree keeps one row for each value of it, the one with the
-- highest row_version. So it holds only what the subject of the event says, which cannot differ when the log is projected again:
-- no time, no quantity and no session, or a corrected mapping would add rows instead of replacing them. The tenant comes first
-- because bills and audits read one tenant; a session is found by its index.
--
-- Version: the newer fact, and of two rows of one fact the newer mapping. The mapping is in it because rows of one version in
-- different partitions stand in no order: a mapping that corrects occurred_at could lose against the one that it corrects.
--
-- Partitions are months, to drop old ones whole. A sandbox that lives over the end of a month has rows in two of them, which
-- is why the views forbid the setting that merges each partition by itself.
CREATE TABLE agents.usage_events_raw
(
    id                    UUID,
    event_type            LowCardinality(String),
    outcome               LowCardinality(String),
    tenant_id             LowCardinality(String),
    session_id            String CODEC(ZSTD(1)),
    org_id                LowCardinality(String),
    sandbox_id            UUID,
    exec_id               UUID,
    occurred_at           DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    cpu_ms                UInt64 CODEC(T64, ZSTD(1)),
    memory_peak_bytes     UInt64 CODEC(T64, ZSTD(1)),
    memory_avg_bytes      UInt64 CODEC(T64, ZSTD(1)),
    disk_read_bytes       UInt64 CODEC(T64, ZSTD(1)),
    disk_write_bytes      UInt64 CODEC(T64, ZSTD(1)),
    network_egress_bytes  UInt64 CODEC(T64, ZSTD(1)),
    network_ingress_bytes UInt64 CODEC(T64, ZSTD(1)),
    gpu_ms                UInt64 CODEC(T64, ZSTD(1)),
    gpu_memory_bytes      UInt64 CODEC(T64, ZSTD(1)),
    wall_time_ms          UInt64 CODEC(T64, ZSTD(1)),
    exit_code             Nullable(Int32) CODEC(ZSTD(1)),
    signal                Int32 CODEC(T64, ZSTD(1)),
    reason                LowCardinality(String),
    stdout_bytes          UInt64 CODEC(T64, ZSTD(1)),
    stderr_bytes          UInt64 CODEC(T64, ZSTD(1)),
    usage_method          LowCardinality(String),
    event_id              UUID,
    stream_seq            UInt64 CODEC(Delta, ZSTD(1)),
    schema_version        UInt16 CODEC(ZSTD(1)),
    ingested_at           DateTime64(3, 'UTC') DEFAULT now64(3) CODEC(Delta, ZSTD(1)),
    row_version           UInt64 MATERIALIZED bitShiftLeft(stream_seq, 16) + schema_version CODEC(Delta, ZSTD(1)),
    INDEX by_session session_id TYPE bloom_filter(0.01) GRANULARITY 1
)
ENGINE = ReplacingMergeTree(row_version)
PARTITION BY toYYYYMM(occurred_at)
ORDER BY (tenant_id, sandbox_id, id)
-- Events count as done once their insert returned, so it must be on disk by then.
SETTINGS non_replicated_deduplication_window = 1000, fsync_after_insert = 1, fsync_part_directory = 1;

-- Execs, one row each however often the log was replayed. Sums over it are what execs used.
CREATE VIEW agents.usage_events AS
SELECT
    id, event_type, outcome, tenant_id, session_id, org_id, sandbox_id, exec_id, occurred_at,
    cpu_ms, memory_peak_bytes, memory_avg_bytes, disk_read_bytes, disk_write_bytes,
    network_egress_bytes, network_ingress_bytes, gpu_ms, gpu_memory_bytes,
    wall_time_ms, exit_code, signal, reason, stdout_bytes, stderr_bytes, usage_method,
    event_id, stream_seq, schema_version, ingested_at
FROM agents.usage_events_raw FINAL
WHERE event_type = 'exec_command'
SETTINGS do_not_merge_across_partitions_select_final = 0;

-- Sandboxes, one row each: what its latest fact says of its whole life. It includes what its execs used, so the two views are
-- never added up.
CREATE VIEW agents.sandbox_usage AS
SELECT
    id, event_type, outcome, tenant_id, session_id, org_id, sandbox_id, occurred_at,
    cpu_ms, memory_peak_bytes, memory_avg_bytes, disk_read_bytes, disk_write_bytes,
    network_egress_bytes, network_ingress_bytes, gpu_ms, gpu_memory_bytes,
    wall_time_ms AS uptime_ms, reason, event_id, stream_seq, schema_version, ingested_at
FROM agents.usage_events_raw FINAL
WHERE event_type = 'sandbox_uptime'
SETTINGS do_not_merge_across_partitions_select_final = 0;

-- +goose Down
DROP VIEW IF EXISTS agents.sandbox_usage;
DROP VIEW IF EXISTS agents.usage_events;
DROP TABLE IF EXISTS agents.usage_events_raw;
DROP DATABASE IF EXISTS agents;
