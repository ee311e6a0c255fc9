package app

import (
	"context"
	"log/slog"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/libs/directget"
	"github.com/sandtrail/sandtrail/services/usage/internal/clickhouse"
	"github.com/sandtrail/sandtrail/services/usage/internal/project"
)

// Rows makes usage rows of events that somebody reads again, beside the service or without one. A row that is there is replaced by
// itself. It is for one goroutine.
type Rows struct {
	conn *clickhouse.Conn
	rows *project.Rows
}

// OpenRows connects to ClickHouse at an address, as Config.ClickHouse has it, and brings its schema up to date.
func OpenRows(ctx context.Context, js jetstream.JetStream, address string) (*Rows, error) {
	conn, err := clickhouse.Open(address)
	if err != nil {
		return nil, err
	}
	r := &Rows{conn: conn}
	if err := (&App{conn: conn, log: slog.New(slog.DiscardHandler)}).schema(ctx, js); err != nil {
		return nil, closed(conn, err)
	}
	if r.rows, err = project.NewRows(ctx, js, conn); err != nil {
		return nil, closed(conn, err)
	}
	return r, nil
}

func closed(conn *clickhouse.Conn, err error) error {
	_ = conn.Close() // why it is closed says more
	return err
}

// Take gives the rows of an event as bytes that are the same each time, nil where it costs nothing or can never be billed. They are
// in ClickHouse once Flush returns nil, or before.
func (r *Rows) Take(ctx context.Context, m directget.Message) ([]byte, error) {
	return r.rows.Take(ctx, m)
}

// Flush writes what was taken. What failed may be flushed again.
func (r *Rows) Flush(ctx context.Context) error { return r.rows.Flush(ctx) }

// Close ends the connection; what was not flushed is left out.
func (r *Rows) Close() error { return r.conn.Close() }
