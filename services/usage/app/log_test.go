package app_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	ch "github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/services/usage/app"
	"github.com/sandtrail/sandtrail/services/usage/internal/project"
)

const patience = time.Minute

// author writes a log of usage: sandboxes of a few tenants with everything that costs something, in an order that no decider would allow.
type author struct {
	t    testing.TB
	js   jetstream.JetStream
	r    *rand.Rand
	at   time.Time
	name string
	// asked are the sandboxes that have been requested, execs how many ended.
	asked map[string]bool
	execs int
}

func newAuthor(t testing.TB, js jetstream.JetStream, seed uint64) *author {
	return &author{
		t: t, js: js, r: rand.New(rand.NewPCG(seed, 0)), at: time.Now().UTC().Add(-72 * time.Hour), name: fmt.Sprint("log-", seed), asked: map[string]bool{},
	}
}

// write adds so many events, all stored when it returns.
func (a *author) write(n int) {
	a.t.Helper()
	for range n {
		agg, body := a.next()
		a.at = a.at.Add(time.Duration(a.r.Int64N(int64(2 * time.Minute))))
		a.put(agg, envelope.Event{Meta: envelope.Meta{ID: ids.New(), Time: a.at}, Body: body})
	}
	select {
	case <-a.js.PublishAsyncComplete():
	case <-time.After(patience):
		require.Fail(a.t, "events were not stored")
	}
}

// put stores one event; what matters is usage, so digests are not chained.
func (a *author) put(agg subject.Aggregate, e envelope.Event) {
	m, _, err := envelope.Encode(agg.Subject(), e, nil)
	require.NoError(a.t, err)
	_, err = a.js.PublishMsgAsync(m)
	require.NoError(a.t, err)
}

func (a *author) next() (subject.Aggregate, proto.Message) {
	n := a.r.IntN(40)
	box := subject.Sandbox(fmt.Sprint("tenant-", n%3), ids.Derive(a.name, fmt.Sprint(n)))
	number := func() uint64 { return a.r.Uint64() >> (a.r.IntN(30) + 34) }
	u := &commonv1.UsageMetrics{
		CpuMs: number(), MemoryAvgBytes: number(), DiskReadBytes: number(), DiskWriteBytes: number(), NetworkEgressBytes: number(), NetworkIngressBytes: number(),
	}
	if !a.asked[box.ID] && n > 0 {
		a.asked[box.ID] = true
		return box, &eventsv1.SandboxRequested{
			SessionId: fmt.Sprint("session-", n%7), Limits: &eventsv1.Limits{CpuMillis: a.r.Uint32N(8000), MemoryBytes: number()}, Workspace: &eventsv1.Workspace{SizeBytes: number()},
		}
	}
	up := a.r.Uint64N(1 << 24)
	switch k := a.r.IntN(20); k {
	case 0, 1:
		return box, &eventsv1.SandboxReady{}
	case 2, 3, 4:
		return box, &eventsv1.SandboxUsageSampled{UptimeMs: up, Usage: u}
	case 5:
		return box, &eventsv1.SandboxStopped{UptimeMs: up, Usage: u}
	case 6:
		return box, &eventsv1.SandboxFailed{UptimeMs: up, Usage: u}
	case 7:
		return subject.Workspace(box.Tenant, box.ID), &eventsv1.WorkspaceDeleted{}
	case 8:
		a.execs++
		return subject.Exec(box.Tenant, box.ID, ids.New()), &eventsv1.ExecLost{Reason: "sandbox_lost", WallTimeUs: up}
	default:
		a.execs++
		return subject.Exec(box.Tenant, box.ID, ids.New()), &eventsv1.ExecCompleted{
			WallTimeUs: a.r.Uint64N(1 << 33), SessionId: []string{"", "own"}[a.r.IntN(2)], Reason: "exited", Usage: u, Stdout: &eventsv1.Output{Bytes: up, DroppedBytes: up / 3},
		}
	}
}

// serve runs the usage service until stop is called.
func serve(t testing.TB, n *natstest.Fixture, address string) (a *app.App, stop func()) {
	t.Helper()
	a, err := app.New(t.Context(), app.Config{ClickHouse: address, RollEvery: 50 * time.Millisecond},
		app.Deps{NC: n.NC, JS: n.JS, Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry()})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		require.NoError(t, <-ended)
	}
	t.Cleanup(stop)
	return a, stop
}

// same waits until ClickHouse has added the whole log up and says what Verify does.
func same(t testing.TB, js jetstream.JetStream, address string) app.Verification {
	t.Helper()
	var (
		v   app.Verification
		err error
	)
	require.Eventually(t, func() bool {
		last, e := project.Last(context.Background(), js)
		p, ok, f := project.Standing(context.Background(), js)
		if e != nil || f != nil || !ok || p.Seq != last {
			return false
		}
		v, err = app.Verify(context.Background(), app.Check{JS: js, Address: address, Patience: 5 * time.Second})
		return err == nil && v.Mark.Seq == last && v.Same()
	}, patience, 100*time.Millisecond, "%v %+v", err, v)
	return v
}

// open connects to ClickHouse.
func open(t testing.TB, address string) driver.Conn {
	t.Helper()
	o, err := ch.ParseDSN(address)
	require.NoError(t, err)
	conn, err := ch.Open(o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	return conn
}

// ask sends a query over HTTP as the user without a password.
func ask(t testing.TB, url, query string) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(query))
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, resp.StatusCode, string(b))
	return strings.TrimSpace(string(b))
}
