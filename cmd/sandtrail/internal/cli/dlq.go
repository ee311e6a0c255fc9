package cli

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/render"
	"github.com/sandtrail/sandtrail/libs/credential"
	"github.com/sandtrail/sandtrail/libs/dlq"
	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog/jslog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/permission"
)

// DLQ is `sandtrail dlq`.
type DLQ struct {
	Ls      DLQLs      `cmd:"" help:"List dead letters, oldest first."`
	Show    DLQShow    `cmd:"" help:"Show all that is known of a dead letter."`
	Redrive DLQRedrive `cmd:"" help:"Give messages back to their consumers."`
	Drop    DLQDrop    `cmd:"" help:"Remove dead letters for good: their messages are never handled."`
}

// Log are the flags of commands for operators, who reach the log itself: no tenant's key gives that right.
type Log struct {
	NATS    string          `name:"nats" default:"nats://127.0.0.1:4222" env:"SANDTRAIL_NATS" placeholder:"URL" group:"The log" help:"The NATS server; may hold credentials, which are never printed."`
	Proof   credential.NATS `embed:""`
	Timeout time.Duration   `default:"5m" help:"Give up after this long."`
	Output  string          `short:"o" default:"table" enum:"table,json" help:"Print as ${enum}."`
}

func (l *Log) json() bool { return l.Output == "json" }

// queue connects to the log. Call done at the end.
func (l *Log) queue(e *Env) (ctx context.Context, q *dlq.Queue, done func(), err error) {
	ctx, js, done, err := l.connect(e, permission.Operator)
	if err != nil {
		return nil, nil, nil, err
	}
	return ctx, dlq.New(js, jslog.New(js)), done, nil
}

// connect connects to the log as a role. Call done at the end.
func (l *Log) connect(e *Env, role permission.Role) (ctx context.Context, js jetstream.JetStream, done func(), err error) {
	if err := l.Proof.Validate(); err != nil {
		return nil, nil, nil, usagef("%v", err)
	}
	options, err := l.Proof.Options(string(role))
	if err != nil {
		return nil, nil, nil, usagef("%v", err)
	}
	options = append(options, nats.Name("sandtrail-cli"), nats.Timeout(5*time.Second))
	nc, err := nats.Connect(l.NATS, options...)
	if err != nil {
		// The error may hold the URL.
		return nil, nil, nil, fault.New(fault.Unavailable, fault.ReasonLogUnavailable,
			"NATS cannot be reached (--nats, SANDTRAIL_NATS; `sandtrail up` runs one)").Because(err)
	}
	if js, err = jetstream.New(nc); err != nil {
		nc.Close()
		return nil, nil, nil, fmt.Errorf("open JetStream: %w", err)
	}
	ctx, stop := e.interruptible()
	ctx, cancel := context.WithTimeout(ctx, l.Timeout)
	return ctx, js, func() {
		cancel()
		stop()
		nc.Close()
	}, nil
}

// Which are the flags that choose letters.
type Which struct {
	Stream    string        `enum:",CMD,EVT,OUT" default:"" placeholder:"STREAM" group:"Which" help:"Only messages of CMD (commands) or EVT (events)."`
	Service   string        `placeholder:"NAME" group:"Which" help:"Only those of a service, e.g. exec."`
	Consumer  string        `placeholder:"NAME" group:"Which" help:"Only those of a consumer, e.g. lifecycle-scheduler-v1."`
	Reason    string        `enum:",poison,attempts,panic" default:"" placeholder:"REASON" group:"Which" help:"Only those that died of poison, attempts or panic."`
	Cause     string        `placeholder:"CAUSE" group:"Which" help:"Only those with this reason of the last failure, e.g. undecodable."`
	OlderThan time.Duration `placeholder:"AGE" group:"Which" help:"Only those that died longer ago."`
	NewerThan time.Duration `placeholder:"AGE" group:"Which" help:"Only those that died since."`
}

func (w *Which) filter() (dlq.Filter, error) {
	if w.OlderThan < 0 || w.NewerThan < 0 {
		return dlq.Filter{}, usagef("an age is not negative")
	}
	f := dlq.Filter{Service: w.Service, Consumer: w.Consumer, Stream: w.Stream, Reason: w.Reason, Cause: w.Cause}
	now := time.Now()
	if w.OlderThan > 0 {
		f.Before = now.Add(-w.OlderThan)
	}
	if w.NewerThan > 0 {
		f.Since = now.Add(-w.NewerThan)
	}
	return f, nil
}

// matching gives at most limit letters, all where it is 0.
func matching(ctx context.Context, q *dlq.Queue, f dlq.Filter, limit int) ([]dlq.Letter, error) {
	var all []dlq.Letter
	for {
		f.Limit = dlq.MaxPage
		if limit > 0 {
			f.Limit = min(f.Limit, limit-len(all))
		}
		page, err := q.List(ctx, f)
		if err != nil {
			return nil, err
		}
		all = append(all, page...)
		if len(page) < f.Limit || len(all) == limit {
			return all, nil
		}
		f.After = page[len(page)-1].ID
	}
}

// DLQLs is `sandtrail dlq ls`.
type DLQLs struct {
	Log
	Which
	Limit int    `default:"50" placeholder:"N" help:"At most this many; 0 is all. Default: ${default}."`
	After uint64 `placeholder:"ID" help:"Only those behind this one: the next page."`
}

// Run lists letters.
func (l *DLQLs) Run(e *Env) error {
	if l.Limit < 0 {
		return usagef("--limit: %d is negative", l.Limit)
	}
	f, err := l.filter()
	if err != nil {
		return err
	}
	f.After = l.After
	ctx, q, done, err := l.queue(e)
	if err != nil {
		return err
	}
	defer done()
	all, err := matching(ctx, q, f, l.Limit)
	if err != nil {
		return ended(ctx, err)
	}
	if l.json() {
		out := make([]letterJSON, 0, len(all))
		for _, x := range all {
			out = append(out, letterOf(x))
		}
		return render.Value(e.Stdout, out)
	}
	t := render.Table{Header: []string{"ID", "AGE", "CONSUMER", "REASON", "CAUSE", "TRIES", "SUBJECT", "ERROR"}}
	for _, x := range all {
		t.Rows = append(t.Rows, []string{
			strconv.FormatUint(x.ID, 10), age(x.Died), x.Consumer, x.Reason, x.FaultReason, strconv.Itoa(x.Attempts), x.Subject, x.Error,
		})
	}
	return t.Write(e.Stdout)
}

func age(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return render.Duration(max(0, time.Since(t)))
}

// letterJSON is a letter as programs get it.
type letterJSON struct {
	ID        uint64    `json:"id"`
	LetterID  string    `json:"letter_id"`
	Service   string    `json:"service"`
	Consumer  string    `json:"consumer"`
	Stream    string    `json:"stream"`
	Sequence  uint64    `json:"sequence"`
	Subject   string    `json:"subject"`
	Tenant    string    `json:"tenant_id"`
	MessageID string    `json:"message_id"`
	Reason    string    `json:"reason"`
	Attempts  int       `json:"attempts"`
	Code      string    `json:"error_code"`
	Cause     string    `json:"error_reason"`
	Error     string    `json:"error_message"`
	StoredAt  time.Time `json:"stored_at"`
	DiedAt    time.Time `json:"died_at"`
	Size      int       `json:"size_bytes"`
	Kept      bool      `json:"payload_kept"`
}

func letterOf(l dlq.Letter) letterJSON {
	return letterJSON{
		ID: l.ID, LetterID: l.LetterID(), Service: l.Service, Consumer: l.Consumer, Stream: l.Stream, Sequence: l.Seq, Subject: l.Subject,
		Tenant: l.Aggregate().Tenant, MessageID: l.MessageID, Reason: l.Reason, Attempts: l.Attempts, Code: l.Code, Cause: l.FaultReason,
		Error: l.Error, StoredAt: l.Stored, DiedAt: l.Died, Size: l.Size + l.Omitted, Kept: l.Omitted == 0,
	}
}

// DLQShow is `sandtrail dlq show`.
type DLQShow struct {
	Log
	ID      uint64 `arg:"" help:"Its id, as in the list."`
	Payload string `type:"path" placeholder:"FILE" help:"Write the message's body to a new file. It may hold what its tenant wrote: commands, sealed secrets."`
}

// Run shows one letter. The body stays inside unless it is asked for.
func (s *DLQShow) Run(e *Env) error {
	ctx, q, done, err := s.queue(e)
	if err != nil {
		return err
	}
	defer done()
	l, err := q.Show(ctx, s.ID)
	if err != nil {
		return ended(ctx, err)
	}
	if s.Payload != "" {
		if err := save(s.Payload, l); err != nil {
			return err
		}
	}
	sum := sha256.Sum256(l.Data)
	digest, correlation := hex.EncodeToString(sum[:]), l.Header.Get(envelope.HeaderCorrelation)
	if l.Omitted > 0 {
		digest = ""
	}
	x := letterOf(l)
	if s.json() {
		return render.Value(e.Stdout, struct {
			letterJSON
			Correlation string `json:"correlation_id"`
			SHA256      string `json:"sha256"`
		}{x, correlation, digest})
	}
	size := render.Bytes(uint64(x.Size)) //nolint:gosec // not negative
	if !x.Kept {
		size += " (too large to be kept)"
	}
	return render.Fields(e.Stdout, []render.Field{
		{Name: "Letter", Value: fmt.Sprintf("%d (%s)", l.ID, x.LetterID)},
		{Name: "Consumer", Value: fmt.Sprintf("%s of service %s", l.Consumer, l.Service)},
		{Name: "Reason", Value: reason(l.Reason, l.FaultReason)},
		{Name: "Error", Value: reason(l.Error, l.Code)},
		{Name: "Attempts", Value: strconv.Itoa(l.Attempts)},
		{Name: "Message", Value: fmt.Sprintf("%s %d on %s", l.Stream, l.Seq, l.Subject)},
		{Name: "Tenant", Value: x.Tenant},
		{Name: "Message id", Value: l.MessageID},
		{Name: "Correlation id", Value: correlation},
		{Name: "Stored", Value: clock(l.Stored)},
		{Name: "Died", Value: clock(l.Died)},
		{Name: "Size", Value: size},
		{Name: "SHA-256", Value: digest},
	})
}

func clock(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return render.Time(moment(t))
}

// save writes a letter's body to a file that must not exist, for its owner only.
func save(path string, l dlq.Letter) (err error) {
	if l.Omitted > 0 {
		return fault.New(fault.FailedPrecondition, fault.ReasonTooLarge, "the payload was too large to be kept")
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return usagef("--payload: %w", err)
	}
	_, err = f.Write(l.Data)
	return errors.Join(err, f.Close())
}
