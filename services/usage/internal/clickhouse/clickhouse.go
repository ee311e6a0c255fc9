// Package clickhouse writes and reads rows of usage in a ClickHouse server, and brings its schema up to date.
package clickhouse

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"regexp"
	"strings"
	"time"

	ch "github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/services/usage/migrations"
)

// live is the database of the service.
const live = "agents"

// versionTable stands in the database that the address names, because agents is itself made by a migration.
const versionTable = "sandtrail_usage_schema"

// Conn is a connection to a server; safe for concurrent use.
type Conn struct {
	conn    ch.Conn
	options *ch.Options
	// database has the tables; empty: that of the service.
	database string
	// cluster has the servers; empty: there is one.
	cluster string
}

// query and exec send statements that name the tables of the service, to the connection's own database.
func (c *Conn) query(ctx context.Context, text string, args ...any) (driver.Rows, error) {
	return c.conn.Query(ctx, c.named(text), args...)
}

func (c *Conn) exec(ctx context.Context, text string, args ...any) error {
	return c.conn.Exec(ctx, c.named(text), args...)
}

// named puts the connection's database in the place of the service's. Values are never part of the text.
func (c *Conn) named(text string) string {
	if c.database == "" {
		return text
	}
	return strings.ReplaceAll(text, live+".", c.database+".")
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

// OnCluster is the same connection for the replicas of a cluster: what makes, changes or swaps tables is done on all its servers.
// fault.InvalidArgument: it is no name.
func (c *Conn) OnCluster(cluster string) (*Conn, error) {
	if cluster != "" && !clusterName.MatchString(cluster) {
		return nil, fault.New(fault.InvalidArgument, fault.ReasonValidation, "the name of a cluster is 1 to 64 of A-Z a-z 0-9 _ -")
	}
	other := *c
	other.cluster = cluster
	return &other, nil
}

var clusterName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// on is the clause of statements that make or change tables.
func (c *Conn) on() string {
	if c.cluster == "" {
		return ""
	}
	return " ON CLUSTER '" + c.cluster + "'"
}

// Up brings the schema to the newest version.
func (c *Conn) Up(ctx context.Context) error {
	return c.Upgrade(ctx, func(context.Context) error { return nil })
}

// Upgrade is Up, and calls changing before any migration behind which the rows have to be made anew. Its error is that of Upgrade, and
// nothing is migrated then.
func (c *Conn) Upgrade(ctx context.Context, changing func(context.Context) error) error {
	return c.migrate(func(p *goose.Provider) error {
		all, err := p.Status(ctx)
		if err != nil {
			return err
		}
		for _, m := range all {
			if m.State == goose.StatePending && !migrations.Neutral[m.Source.Version] {
				if err := changing(ctx); err != nil {
					return err
				}
				break
			}
		}
		_, err = p.Up(ctx)
		return err
	})
}

// Down takes every migration back: all rows go. They can be made again from the log.
func (c *Conn) Down(ctx context.Context) error { return c.DownTo(ctx, 0) }

// DownTo takes migrations back, down to a version that stays.
func (c *Conn) DownTo(ctx context.Context, version int64) error {
	return c.migrate(func(p *goose.Provider) error {
		_, err := p.DownTo(ctx, version)
		return err
	})
}

func (c *Conn) migrate(do func(*goose.Provider) error) error {
	var files fs.FS = migrations.Files
	if c.cluster != "" {
		files = migrations.Replicated(c.cluster)
	}
	db := ch.OpenDB(c.options)
	err := withProvider(db, files, do)
	if err := errors.Join(err, db.Close()); err != nil {
		return fmt.Errorf("migrate ClickHouse: %w", err)
	}
	return nil
}

func withProvider(db *sql.DB, files fs.FS, do func(*goose.Provider) error) error {
	store, err := database.NewStore(database.DialectClickHouse, versionTable)
	if err != nil {
		return err
	}
	p, err := goose.NewProvider("", db, files, goose.WithStore(store))
	if err != nil {
		return err
	}
	return do(p)
}
