// Package jslog is the event log on NATS JetStream: one subject of the stream EVT is one aggregate's history.
//
// Append costs one round trip. Load is a direct get, which costs no consumer; in a cluster a replica that lags may answer it
// with a shorter history. That is harmless to who appends: the append is refused and the decision is taken again.
package jslog

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/pause"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
)

const (
	// MaxHistory bounds the events of one aggregate that Load reads into memory. Over it is fault.ResourceExhausted.
	MaxHistory = 100_000

	maxAttempts    = 8
	attemptTimeout = 3 * time.Second
	// budget bounds a load, or an append behind its first attempt, with all attempts where the caller sets no deadline.
	budget   = 12 * time.Second
	maxPause = time.Second
)

// Log is the event log on a JetStream.
type Log struct {
	publisher  publisher
	reader     reader
	maxHistory int
	pageSize   int
	attempts   int
	// firstPause is doubled after each attempt, up to maxPause.
	firstPause time.Duration
	timeout    time.Duration
}

var _ eventlog.Log = (*Log)(nil)

// publisher stores messages, all or none, and gives the sequence of the last. It is a seam: tests lose its acknowledgements.
type publisher interface {
	publish(ctx context.Context, messages []*nats.Msg) (ack, error)
}

// ack is the server's answer: the sequence of the last message stored, or of the first one with the same id.
type ack struct {
	seq       uint64
	duplicate bool
}

// reader reads stored messages.
type reader interface {
	// page reads up to n messages of a subject from a sequence on; pending is how many are left behind them.
	page(ctx context.Context, subject string, from uint64, n int) (messages []stored, pending int, err error)
	// leaderPage is page answered by the leader, which has all there is. It costs a round trip for each message.
	leaderPage(ctx context.Context, subject string, from uint64, n int) (messages []stored, pending int, err error)
	// last reads the subjects that match a filter, at most n.
	last(ctx context.Context, filter string, n int) ([]string, error)
	// leaderLast is the last message of a subject or filter as the leader has it, nil without one.
	leaderLast(ctx context.Context, filter string) (*stored, error)
}

// New is the log on the stream that topology.Ensure made.
func New(js jetstream.JetStream) *Log {
	return &Log{
		publisher: wire{js}, reader: wire{js}, maxHistory: MaxHistory, pageSize: 256,
		attempts: maxAttempts, firstPause: 10 * time.Millisecond, timeout: attemptTimeout,
	}
}

// Append implements eventlog.Log. When it ends with fault.Unavailable, or because ctx did, the events may be recorded or not;
// the same append may be repeated.
func (l *Log) Append(
	ctx context.Context, agg subject.Aggregate, after eventlog.Tail, events ...envelope.Event,
) ([]envelope.Recorded, error) {
	if len(events) == 0 {
		return nil, nil
	}
	return l.AppendBatch(ctx, eventlog.Entry{Aggregate: agg, After: after, Events: events})
}

// AppendBatch implements eventlog.Log. What is said of Append about unknown outcomes is true of it too.
func (l *Log) AppendBatch(ctx context.Context, entries ...eventlog.Entry) ([]envelope.Recorded, error) {
	if len(entries) == 0 {
		return nil, nil
	}
	batch, err := eventlog.Batch(ctx, entries)
	if err != nil {
		return nil, err
	}
	a := &appending{log: l, entries: entries, batch: batch}
	for i, messages := range batch {
		guard(messages[0], entries[i].After.Seq)
		a.flat = append(a.flat, messages...)
	}
	return a.run(ctx)
}

// guard makes the server refuse a message unless its subject ends at seq. Only the first message of an aggregate in a batch
// carries one: the server cannot check a subject that the same batch has written to.
func guard(m *nats.Msg, seq uint64) {
	m.Header.Set(jetstream.ExpectedStreamHeader, topology.StreamEvents)
	m.Header.Set(jetstream.ExpectedLastSubjSeqHeader, strconv.FormatUint(seq, 10))
}

// Load implements eventlog.Log, and verifies the digest chain. A damaged history is returned with an error that has an
// *eventlog.ChainError in its chain.
func (l *Log) Load(ctx context.Context, agg subject.Aggregate) (eventlog.History, error) {
	if err := agg.Validate(); err != nil {
		return eventlog.History{}, fault.New(fault.InvalidArgument, fault.ReasonValidation, err.Error())
	}
	ctx, cancel := context.WithTimeoutCause(ctx, budget, errBudget)
	defer cancel()
	h := eventlog.History{Aggregate: agg}
	var from uint64 = 1
	for {
		messages, pending, err := l.page(ctx, agg.Subject(), from, l.pageSize)
		if err != nil {
			return eventlog.History{}, err
		}
		if h.Events, err = decode(h.Events, messages); err != nil {
			return eventlog.History{}, err
		}
		if len(h.Events)+pending > l.maxHistory {
			return eventlog.History{}, fault.Newf(fault.ResourceExhausted, fault.ReasonTooLarge,
				"the history has more than %d events", l.maxHistory)
		}
		if pending == 0 || len(messages) == 0 {
			return h, eventlog.Verify(h)
		}
		from = messages[len(messages)-1].Seq + 1
	}
}

// LastSeq implements eventlog.Log.
func (l *Log) LastSeq(ctx context.Context, agg subject.Aggregate) (uint64, error) {
	if err := agg.Validate(); err != nil {
		return 0, fault.New(fault.InvalidArgument, fault.ReasonValidation, err.Error())
	}
	ctx, cancel := context.WithTimeoutCause(ctx, budget, errBudget)
	defer cancel()
	m, err := l.leaderLast(ctx, agg.Subject())
	if err != nil || m == nil {
		return 0, err
	}
	return m.Seq, nil
}

// Last is eventlog.Last: one question to the leader of the log. The digest chain is not verified.
func (l *Log) Last(ctx context.Context, agg subject.Aggregate) (eventlog.History, error) {
	h := eventlog.History{Aggregate: agg}
	if err := agg.Validate(); err != nil {
		return h, fault.New(fault.InvalidArgument, fault.ReasonValidation, err.Error())
	}
	ctx, cancel := context.WithTimeoutCause(ctx, budget, errBudget)
	defer cancel()
	m, err := l.leaderLast(ctx, agg.Subject())
	if err != nil || m == nil {
		return h, err
	}
	h.Events, err = decode(nil, []stored{*m})
	return h, err
}

// Find gives the aggregate whose subject matches a filter, such as subject.AnyTenantSandbox(id). None is fault.NotFound, and certain;
// several are fault.Conflict. In a cluster it may miss a second one that was made a moment ago.
func (l *Log) Find(ctx context.Context, filter string) (subject.Aggregate, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, budget, errBudget)
	defer cancel()
	var subjects []string
	err := l.retry(ctx, func(ctx context.Context) (err error) {
		subjects, err = l.reader.last(ctx, filter, 2)
		return err
	})
	if err != nil {
		return subject.Aggregate{}, err
	}
	if len(subjects) == 0 {
		// The replica that answered may lag.
		m, err := l.leaderLast(ctx, filter)
		if err != nil {
			return subject.Aggregate{}, err
		}
		if m != nil {
			subjects = []string{m.Subject}
		}
	}
	return eventlog.Found(filter, subjects)
}

// leaderLast is reader.leaderLast with retries.
func (l *Log) leaderLast(ctx context.Context, filter string) (m *stored, err error) {
	err = l.retry(ctx, func(ctx context.Context) (err error) {
		m, err = l.reader.leaderLast(ctx, filter)
		return err
	})
	return m, err
}

// page is reader.page with retries: reading again is always safe.
func (l *Log) page(ctx context.Context, subj string, from uint64, n int) (messages []stored, pending int, err error) {
	err = l.retry(ctx, func(ctx context.Context) (err error) {
		messages, pending, err = l.reader.page(ctx, subj, from, n)
		return err
	})
	return messages, pending, err
}

// leaderPage is reader.leaderPage with retries.
func (l *Log) leaderPage(ctx context.Context, subj string, from uint64, n int) (messages []stored, pending int, err error) {
	err = l.retry(ctx, func(ctx context.Context) (err error) {
		messages, pending, err = l.reader.leaderPage(ctx, subj, from, n)
		return err
	})
	return messages, pending, err
}

// retry calls read until it succeeds, the attempts are used up or ctx ends. What it gives is a fault.
func (l *Log) retry(ctx context.Context, read func(context.Context) error) error {
	var err error
	for attempt := range l.attempts {
		if err = ctx.Err(); err != nil {
			break
		}
		once, cancel := context.WithTimeout(ctx, l.timeout)
		err = read(once)
		cancel()
		if err == nil {
			return nil
		}
		if perr := l.pause(ctx, attempt); perr != nil {
			break
		}
	}
	return unavailable(ctx, err)
}

// pause waits before the next attempt, between half and the whole of a time that doubles.
func (l *Log) pause(ctx context.Context, attempt int) error {
	d := min(l.firstPause<<attempt, maxPause)
	if pause.For(ctx, d/2+rand.N(d/2+1)) != nil { // spreads load, guards nothing
		return ctx.Err()
	}
	return nil
}

func decode(events []envelope.Recorded, messages []stored) ([]envelope.Recorded, error) {
	for _, m := range messages {
		r, err := envelope.Decode(m.Subject, m.Seq, m.Header, m.Data)
		if err != nil {
			return nil, fault.New(fault.Internal, fault.ReasonInternal, "an event in the log cannot be read").Because(err)
		}
		events = append(events, r)
	}
	return events, nil
}

// errBudget ends a context because of our own bound, not the caller's.
var errBudget = errors.New("the log was given up on")

// unavailable is the fault of a log that did not answer. Where the caller's own context has ended it says that instead: then
// nothing is known about the log.
func unavailable(ctx context.Context, err error) error {
	if ctx.Err() != nil && !errors.Is(context.Cause(ctx), errBudget) {
		return eventlog.Ended(ctx.Err())
	}
	return fault.New(fault.Unavailable, fault.ReasonLogUnavailable,
		"the event log cannot be reached; try again").Because(err).WithRetry(time.Second)
}
