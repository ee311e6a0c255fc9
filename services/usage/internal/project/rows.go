package project

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandtrail/sandtrail/libs/directget"
	"github.com/sandtrail/sandtrail/libs/feed"
	"github.com/sandtrail/sandtrail/services/usage/internal/clickhouse"
)

// Rows makes the rows that a projector makes, of events that somebody else reads, and keeps no checkpoint. It is for one goroutine.
type Rows struct {
	p *Projector
	b batch
	// touched are the sandboxes of rows since the last flush: what of them was added up may be without these rows.
	touched map[touched]bool
}

type touched struct {
	tenant  string
	sandbox uuid.UUID
}

// NewRows writes into a sink.
func NewRows(ctx context.Context, js jetstream.JetStream, sink Sink) (*Rows, error) {
	p, err := New(ctx, Config{JS: js, Sink: sink, Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry()})
	if err != nil {
		return nil, err
	}
	return &Rows{p: p, touched: map[touched]bool{}}, nil
}

// Take makes the rows of an event and gives them as bytes that are the same each time; nil of one that makes none, or never will.
func (r *Rows) Take(ctx context.Context, m directget.Message) ([]byte, error) {
	stored := feed.Stored(&jetstream.RawStreamMsg{Subject: m.Subject, Sequence: m.Seq, Header: m.Header, Data: m.Data})
	made, err := r.p.row(ctx, &r.b, stored, stored.Head())
	var never *unusable
	if errors.As(err, &never) || made == 0 && err == nil {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	all := []clickhouse.Row{r.b.row, r.b.reading}[:made]
	for i := range all {
		r.b.rows.Add(&all[i])
		r.touched[touched{all[i].Tenant, all[i].Sandbox}] = true
	}
	data, err := json.Marshal(all)
	if err != nil {
		return nil, fmt.Errorf("rows of event %d: %w", m.Seq, err)
	}
	if r.b.rows.Len() < MaxBatch {
		return data, nil
	}
	return data, r.Flush(ctx)
}

// Flush inserts what was taken. A sandbox of which rows came is added up anew: whoever adds up may have done so without them.
func (r *Rows) Flush(ctx context.Context) error {
	if r.b.rows.Len() == 0 {
		return nil
	}
	if err := r.p.write(ctx, &r.b.rows); err != nil {
		return err
	}
	for t := range r.touched {
		if err := r.p.sink.Late(ctx, t.tenant, t.sandbox); err != nil {
			return err
		}
	}
	r.b.rows.Reset()
	clear(r.touched)
	return nil
}
