// Package clickhouse writes and reads rows of usage in a ClickHouse server, and brings its schema up to date.
package clickhouse

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"time"

	ch "github.com/ClickHouse/clickhouse-go/v2"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/services/usage/migrations"
)

// versionTable stands in the database that the address names, because agents is itself made by a migration.
const versionTable = "sandtrail_usage_schema"

// Conn is a connection to a server; safe for concurrent use.
type Conn struct {
	conn    ch.Conn
	options *ch.Options
}

// Open reads the address (clickhouse://user:password@host:9000/database or http://…) and prepares a connection; it connects at
// the first use. fault.InvalidArgument, without the address, which may hold a password.
func Open(address string) (*Conn, error) {
	o, err := ch.ParseDSN(address)
	if err != nil {
		return nil, fault.New(fault.InvalidArgument, fault.ReasonValidation,
			"the address of ClickHouse must look like clickhouse://user:password@host:9000/database")
	}
	o.MaxOpenConns, o.MaxIdleConns = 4, 2
	if o.DialTimeout == 0 {
		o.DialTimeout = 5 * time.Second
	}
	if o.Compression == nil {
		o.Compression = &ch.Compression{Method: ch.CompressionLZ4}
		if near(o.Addr) {
			o.Compression.Method = ch.CompressionNone
		}
	}
	conn, err := ch.Open(o)
	if err != nil {
		return nil, fmt.Errorf("open ClickHouse: %w", err)
	}
	return &Conn{conn: conn, options: o}, nil
}

// near reports whether all servers are on this host: compressing for them costs more than it saves.
func near(addresses []string) bool {
	for _, a := range addresses {
		host, _, err := net.SplitHostPort(a)
		if ip := net.ParseIP(host); err != nil || (host != "localhost" && (ip == nil || !ip.IsLoopback())) {
			return false
		}
	}
	return true
}

// Close closes the connection.
func (c *Conn) Close() error { return c.conn.Close() }

// Ping says whether the server answers.
func (c *Conn) Ping(ctx context.Context) error {
	if err := c.conn.Ping(ctx); err != nil {
		return fault.New(fault.Unavailable, fault.ReasonInternal, "ClickHouse does not answer").Because(err)
	}
	return nil
}

// Refused reports whether the server itself said no: the same again is refused again.
func Refused(err error) bool { return errors.As(err, new(*ch.Exception)) }

// Up brings the schema to the newest version.
func (c *Conn) Up(ctx context.Context) error {
	return c.migrate(func(p *goose.Provider) error {
		_, err := p.Up(ctx)
		return err
	})
}

// Down takes every migration back: all rows go. They can be made again from the log.
func (c *Conn) Down(ctx context.Context) error {
	return c.migrate(func(p *goose.Provider) error {
		_, err := p.DownTo(ctx, 0)
		return err
	})
}

func (c *Conn) migrate(do func(*goose.Provider) error) error {
	db := ch.OpenDB(c.options)
	err := withProvider(db, do)
	if err := errors.Join(err, db.Close()); err != nil {
		return fmt.Errorf("migrate ClickHouse: %w", err)
	}
	return nil
}

func withProvider(db *sql.DB, do func(*goose.Provider) error) error {
	store, err := database.NewStore(database.DialectClickHouse, versionTable)
	if err != nil {
		return err
	}
	p, err := goose.NewProvider("", db, migrations.Files, goose.WithStore(store))
	if err != nil {
		return err
	}
	return do(p)
}
