-- +goose Up
-- Where an id comes from, over all tenants: without these each look-up reads every id there is. Parts that stand already get them in the
-- background; until then a look-up is slow, not wrong.
ALTER TABLE agents.usage_events_raw
    ADD INDEX IF NOT EXISTS by_id      id         TYPE bloom_filter(0.001) GRANULARITY 1,
    ADD INDEX IF NOT EXISTS by_exec    exec_id    TYPE bloom_filter(0.001) GRANULARITY 1,
    ADD INDEX IF NOT EXISTS by_event   event_id   TYPE bloom_filter(0.001) GRANULARITY 1,
    ADD INDEX IF NOT EXISTS by_sandbox sandbox_id TYPE bloom_filter(0.001) GRANULARITY 1;

ALTER TABLE agents.usage_events_raw MATERIALIZE INDEX by_id, MATERIALIZE INDEX by_exec, MATERIALIZE INDEX by_event, MATERIALIZE INDEX by_sandbox;

-- +goose Down
ALTER TABLE agents.usage_events_raw
    DROP INDEX IF EXISTS by_id,
    DROP INDEX IF EXISTS by_exec,
    DROP INDEX IF EXISTS by_event,
    DROP INDEX IF EXISTS by_sandbox;
