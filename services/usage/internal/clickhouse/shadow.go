package clickhouse

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
)

// shadowDatabase has tables that are made from the log beside those of the service.
const shadowDatabase = "agents_rebuild"

// shadowed are the tables that a swap exchanges, in its order: the facts come first, because the hours can be made of them, and the mark
// comes last, because it says that all others are complete.
var shadowed = []string{"usage_events_raw", "usage_hourly_raw", "usage_daily_raw", "usage_windows_raw", "usage_rollup"}

// Shadow is a second set of the tables of usage, that nobody bills from.
type Shadow struct {
	*Conn
	live *Conn
	// changes counts how often the state was stored.
	changes uint64
}

// ShadowState is how far a shadow is.
type ShadowState struct {
	// Life is that of the mark; a shadow of another one is of no use.
	Life string `json:"life"`
	// Read is the last event whose rows stand in the shadow.
	Read uint64 `json:"read"`
	// Events and Unusable count those that were read, and those that never make a row.
	Events   int `json:"events"`
	Unusable int `json:"unusable"`
	// Swap names the tables that are to stand in the place of the others, by their ids, from the beginning of a swap to its end.
	Swap map[string]string `json:"swap,omitempty"`
}

// Shadow opens the shadow; it may not be there.
func (c *Conn) Shadow() *Shadow {
	other := *c
	other.database = shadowDatabase
	return &Shadow{Conn: &other, live: c}
}

// State reads how far the shadow is. false: there is none.
func (s *Shadow) State(ctx context.Context) (ShadowState, bool, error) {
	var state ShadowState
	rows, err := s.query(ctx, "SELECT count() FROM system.tables WHERE database = ? AND name = 'usage_rebuild'", shadowDatabase)
	if err != nil {
		return state, false, unreadable(err)
	}
	n, err := one[uint64](rows, 0)
	if err != nil || n == 0 {
		return state, false, err
	}
	if rows, err = s.query(ctx, "SELECT state FROM agents.usage_rebuild FINAL"); err != nil {
		return state, false, unreadable(err)
	}
	text, err := one(rows, "")
	if err != nil || text == "" {
		return state, false, err
	}
	if err := json.Unmarshal([]byte(text), &state); err != nil {
		return state, false, fmt.Errorf("read the state of a rebuild: %w", err)
	}
	if rows, err = s.query(ctx, "SELECT max(revision) FROM agents.usage_rebuild"); err != nil {
		return state, false, unreadable(err)
	}
	s.changes, err = one[uint64](rows, 0)
	return state, true, err
}

// Save stores how far the shadow is.
func (s *Shadow) Save(ctx context.Context, state ShadowState) error {
	text, err := json.Marshal(state)
	if err != nil {
		return fmt.Errorf("store the state of a rebuild: %w", err)
	}
	s.changes++
	if err := s.exec(ctx, "INSERT INTO agents.usage_rebuild (name, state, revision) SELECT 'all', ?, ?", string(text), s.changes); err != nil {
		return fmt.Errorf("store the state of a rebuild: %w", err)
	}
	return nil
}

// Make makes an empty shadow in the place of whatever there was. Its tables are as those of the service are now.
func (s *Shadow) Make(ctx context.Context) error {
	if err := s.Drop(ctx); err != nil {
		return err
	}
	steps := []string{"CREATE DATABASE " + shadowDatabase + s.on()}
	for _, t := range append([]string{"usage_late"}, shadowed...) {
		steps = append(steps, "CREATE TABLE "+shadowDatabase+"."+t+s.on()+" AS "+live+"."+t)
	}
	engine := "ReplacingMergeTree"
	if s.cluster != "" {
		engine = "Replicated" + engine
	}
	steps = append(steps, "CREATE TABLE "+shadowDatabase+".usage_rebuild"+s.on()+" (name LowCardinality(String), state String, revision UInt64)"+
		" ENGINE = "+engine+"(revision) ORDER BY name SETTINGS fsync_after_insert = 1, fsync_part_directory = 1")
	for _, step := range steps {
		if err := s.conn.Exec(ctx, step); err != nil {
			return fmt.Errorf("make the shadow tables: %w", err)
		}
	}
	return nil
}

// Drop removes the shadow.
func (s *Shadow) Drop(ctx context.Context) error {
	if err := s.conn.Exec(ctx, "DROP DATABASE IF EXISTS "+shadowDatabase+s.on()+" SYNC"); err != nil {
		return fmt.Errorf("remove the shadow tables: %w", err)
	}
	s.changes = 0
	return nil
}

// Prepare makes the shadow ready to stand in the place of the service's tables, as of m, and gives the ids of its tables. What was closed
// stays closed as of the same event, and windows that are not as they stand are reopened.
func (s *Shadow) Prepare(ctx context.Context, m Mark) (map[string]string, error) {
	ctx = final(ctx)
	if err := s.exec(ctx, "TRUNCATE TABLE agents.usage_windows_raw"); err != nil {
		return nil, fmt.Errorf("prepare windows: %w", err)
	}
	text := s.both(statement("windows_rebuilt", m))
	if err := s.conn.Exec(ctx, text, m.Seq, m.revision(), m.At.Add(-Grace).UnixMilli(), m.Seq); err != nil {
		return nil, fmt.Errorf("prepare windows: %w", err)
	}
	err := s.exec(ctx, "INSERT INTO agents.usage_rollup (name, life, stream_seq, at, revision) SELECT 'generation', ?, ?, fromUnixTimestamp64Milli(toInt64(?), 'UTC'), ?",
		uuid.NewString(), m.Seq, m.At.UnixMilli(), m.revision())
	if err != nil {
		return nil, fmt.Errorf("prepare the mark: %w", err)
	}
	return s.ids(ctx, shadowDatabase)
}

// ids are those of the tables in a database, which they keep under any name.
func (s *Shadow) ids(ctx context.Context, database string) (map[string]string, error) {
	rows, err := s.conn.Query(ctx, "SELECT name, toString(uuid) FROM system.tables WHERE database = ? AND name IN (?)", database, shadowed)
	if err != nil {
		return nil, unreadable(err)
	}
	defer func() { _ = rows.Close() }()
	all := map[string]string{}
	for rows.Next() {
		var name, id string
		if err := rows.Scan(&name, &id); err != nil {
			return nil, unreadable(err)
		}
		all[name] = id
	}
	if err := rows.Err(); err != nil {
		return nil, unreadable(err)
	}
	if len(all) != len(shadowed) {
		return nil, fmt.Errorf("swap tables: %d of %d are in %s", len(all), len(shadowed), database)
	}
	return all, nil
}

// Swap puts the tables with these ids in the place of the service's, where they do not stand there yet. between is called once the facts do:
// it has to insert there what the service may have inserted into the others at the last moment. swapped is told of each table. Done again
// after a death it goes on.
func (s *Shadow) Swap(ctx context.Context, wanted map[string]string, between func(context.Context) error, swapped func(table string)) error {
	stands, err := s.ids(ctx, live)
	if err != nil {
		return err
	}
	for i, t := range shadowed {
		if stands[t] != wanted[t] {
			if err := s.conn.Exec(ctx, "EXCHANGE TABLES "+live+"."+t+" AND "+shadowDatabase+"."+t+s.on()); err != nil {
				return fmt.Errorf("swap tables: %w", err)
			}
			swapped(t)
		}
		if i == 0 {
			if err := between(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// both puts databases into a statement about the service's tables and the shadow's.
func (s *Shadow) both(text string) string {
	return strings.NewReplacer("{live}", live, "{shadow}", shadowDatabase).Replace(text)
}

// Rolling reports whether hours stand that are newer than a mark: they are being added up now, or whoever did has died.
func (c *Conn) Rolling(ctx context.Context, m Mark) (bool, error) {
	rows, err := c.query(ctx, "SELECT count() FROM agents.usage_hourly_raw WHERE revision > ?", m.revision())
	if err != nil {
		return false, unreadable(err)
	}
	n, err := one[uint64](rows, 0)
	return n > 0, err
}

// rowsOf are the results of a query.
type rowsOf interface {
	Next() bool
	Scan(dest ...any) error
	Err() error
	Close() error
}

// one reads a single value; nothing where there is none.
func one[T any](rows rowsOf, nothing T) (T, error) {
	defer func() { _ = rows.Close() }()
	v := nothing
	for rows.Next() {
		if err := rows.Scan(&v); err != nil {
			return v, unreadable(err)
		}
	}
	if err := rows.Err(); err != nil {
		return v, unreadable(err)
	}
	return v, nil
}

// newest are the highest sequences of rows behind one, the highest first, at most so many.
func (c *Conn) newest(ctx context.Context, behind uint64, limit int) ([]uint64, error) {
	rows, err := c.query(ctx, "SELECT stream_seq FROM agents.usage_events_raw WHERE stream_seq > ? ORDER BY stream_seq DESC LIMIT ?", behind, limit)
	if err != nil {
		return nil, unreadable(err)
	}
	defer func() { _ = rows.Close() }()
	var all []uint64
	for rows.Next() {
		var seq uint64
		if err := rows.Scan(&seq); err != nil {
			return nil, unreadable(err)
		}
		all = append(all, seq)
	}
	if err := rows.Err(); err != nil {
		return nil, unreadable(err)
	}
	return all, nil
}

// beyondKept bounds the rows that Beyond counts.
const beyondKept = 1000

// Beyond counts rows of events that the log does not have, as far as beyondKept. last gives the log's last sequence and is asked after the rows
// were read, because new ones come meanwhile.
func (c *Conn) Beyond(ctx context.Context, m Mark, last func(context.Context) (uint64, error)) (int, error) {
	all, err := c.newest(ctx, m.Seq, beyondKept)
	if err != nil || len(all) == 0 {
		return 0, err
	}
	end, err := last(ctx)
	if err != nil {
		return 0, err
	}
	return len(slices.DeleteFunc(all, func(seq uint64) bool { return seq <= end })), nil
}
