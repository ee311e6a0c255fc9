package audit

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/eventlog/jslog"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

var began = time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)

// world is a log on a real server, with aggregates a, b, c whose events stand between each other's, and what was signed of it.
type world struct {
	t      testing.TB
	f      *natstest.Fixture
	key    Signer
	keys   Keys
	log    eventlog.Log
	boxes  []subject.Aggregate
	rounds int
}

func newKey(t testing.TB) (Signer, Keys) {
	t.Helper()
	k, err := LoadSigner(filepath.Join(t.TempDir(), "keys", "audit.pem"))
	require.NoError(t, err)
	return k, Keys{k.Public()}
}

func newWorld(t testing.TB) *world {
	t.Helper()
	f := natstest.Start(t)
	w := &world{t: t, f: f, log: jslog.New(f.JS)}
	w.key, w.keys = newKey(t)
	for _, name := range []string{"a", "b", "c"} {
		w.boxes = append(w.boxes, subject.Sandbox("acme", name))
	}
	return w
}

// live appends rounds of one event to each aggregate.
func (w *world) live(rounds int) {
	w.t.Helper()
	for range rounds {
		w.rounds++
		for _, agg := range w.boxes {
			h, err := w.log.Load(w.t.Context(), agg)
			require.NoError(w.t, err)
			_, err = w.log.Append(w.t.Context(), agg, h.Tail(), envelope.Event{
				Meta: envelope.Meta{ID: ids.Derive(agg.ID, fmt.Sprint(w.rounds)), Actor: "dev", Cause: "c", Correlation: "o", Time: began, Traceparent: "00-1-2-01"},
				Body: &eventsv1.SandboxUsageSampled{UptimeMs: uint64(w.rounds)},
			})
			require.NoError(w.t, err)
		}
	}
}

func (w *world) writer() Writer {
	return Writer{JS: w.f.JS, Log: w.log, Signer: w.key, Actor: "service:gc", Now: func() time.Time { return began }}
}

func (w *world) sign() Checkpoint {
	w.t.Helper()
	c, err := w.writer().Sign(w.t.Context())
	require.NoError(w.t, err)
	return c
}

// recorded is a world of three rounds, signed, three more, signed, and one that is not signed: 1-9, 10, 11-19, 20, 21-23.
func recorded(t testing.TB) *world {
	t.Helper()
	w := newWorld(t)
	w.live(3)
	w.sign()
	w.live(3)
	w.sign()
	w.live(1)
	return w
}

func (w *world) open() Log {
	w.t.Helper()
	log, err := OpenLog(w.t.Context(), w.f.JS)
	require.NoError(w.t, err)
	return log
}

// entries are the whole log.
func (w *world) entries() []Entry {
	w.t.Helper()
	s, err := w.open().Open(w.t.Context(), 1)
	require.NoError(w.t, err)
	return all(w.t, s)
}

func all(t testing.TB, s Source) (entries []Entry) {
	t.Helper()
	require.NoError(t, Each(t.Context(), s, func(e *Entry) error {
		entries = append(entries, clone(*e))
		return nil
	}))
	return entries
}

func clone(e Entry) Entry {
	e.Headers, e.Data = strings.Clone(e.Headers), slices.Clone(e.Data)
	return e
}

// list is a source of entries in memory.
type list struct{ left []Entry }

func (l *list) Next(context.Context) ([]Entry, error) {
	if len(l.left) == 0 {
		return nil, io.EOF
	}
	n := min(len(l.left), 4)
	batch := l.left[:n]
	l.left = l.left[n:]
	return batch, nil
}

func (*list) Close() {}

func lists(entries []Entry) Opener {
	return func(_ context.Context, from uint64, _ ...string) (Source, error) {
		i := slices.IndexFunc(entries, func(e Entry) bool { return e.Seq >= from })
		if i < 0 {
			i = len(entries)
		}
		return &list{slices.Clone(entries[i:])}, nil
	}
}

// rewrite makes the log of a server anew with what is in entries, in their order: the server gives the sequences. false: it does not take
// the same id twice.
func rewrite(t testing.TB, f *natstest.Fixture, entries []Entry) (Log, bool) {
	t.Helper()
	ctx := t.Context()
	require.NoError(t, f.JS.DeleteStream(ctx, topology.StreamEvents))
	require.NoError(t, topology.Ensure(ctx, f.JS, f.Options))
	for i := range entries {
		m := &nats.Msg{Subject: entries[i].Subject, Data: entries[i].Data, Header: nats.Header{}}
		if entries[i].Headers != "" {
			m.Header = header(t, &entries[i])
		}
		for name := range m.Header {
			if strings.HasPrefix(name, "Nats-Expected") {
				m.Header.Del(name)
			}
		}
		ack, err := f.JS.PublishMsg(ctx, m)
		require.NoError(t, err)
		if ack.Duplicate {
			return Log{}, false
		}
	}
	log, err := OpenLog(ctx, f.JS)
	require.NoError(t, err)
	return log, true
}

// export writes entries into a directory, some to a segment, with the sequences that they have.
func export(t testing.TB, logID string, to uint64, entries []Entry) string {
	t.Helper()
	dir := t.TempDir()
	x := Export{Dir: dir, LogID: logID, To: to, most: 5}
	_, err := x.Run(t.Context(), lists(entries))
	require.NoError(t, err)
	return dir
}

func verify(t testing.TB, s Source, o Options) Report {
	t.Helper()
	o.Dir = t.TempDir()
	v := NewVerifier(o)
	defer v.Close()
	r, err := Verify(t.Context(), s, v)
	require.NoError(t, err)
	return r
}

func verifyExport(t testing.TB, dir string, o Options) Report {
	t.Helper()
	v := NewVerifier(o)
	defer v.Close()
	s, err := OpenExport(dir, 1, v.Found)
	require.NoError(t, err)
	v.o.LastSeq = s.To()
	r, err := Verify(t.Context(), s, v)
	require.NoError(t, err)
	return r
}

// head gives the headers of an entry as a map, and set writes them back.
func header(t testing.TB, e *Entry) nats.Header {
	t.Helper()
	h, err := nats.DecodeHeadersMsg([]byte(e.Headers))
	require.NoError(t, err)
	return h
}

func setHeader(e *Entry, h nats.Header) {
	var b strings.Builder
	b.WriteString("NATS/1.0\r\n")
	for name, values := range h {
		for _, v := range values {
			fmt.Fprintf(&b, "%s: %s\r\n", name, v)
		}
	}
	b.WriteString("\r\n")
	e.Headers = b.String()
}

// chainAfter gives an entry the digest that it has behind another one, nil for none.
func chainAfter(t testing.TB, e, before *Entry) {
	t.Helper()
	var previous []byte
	if before != nil {
		var err error
		previous, err = hex.DecodeString(header(t, before).Get(envelope.HeaderDigest))
		require.NoError(t, err)
	}
	h := header(t, e)
	h.Set(envelope.HeaderDigest, hex.EncodeToString(envelope.Digest(previous, h, e.Data)))
	setHeader(e, h)
}

// other is an event of an aggregate that nobody appended.
func other(t testing.TB, on string) Entry {
	t.Helper()
	data, err := proto.Marshal(&eventsv1.SandboxUsageSampled{UptimeMs: 666})
	require.NoError(t, err)
	m, _, err := envelope.Encode(on, envelope.Event{
		Meta: envelope.Meta{ID: ids.New(), Tenant: "acme", Actor: "dev", Time: began}, Body: &eventsv1.SandboxUsageSampled{UptimeMs: 666},
	}, []byte("nothing"))
	require.NoError(t, err)
	e := Entry{Subject: on, Data: data}
	setHeader(&e, m.Header)
	return e
}

func renumber(entries []Entry) []Entry {
	for i := range entries {
		entries[i].Seq = uint64(i + 1)
	}
	return entries
}
