package dlq

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/libs/directget"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
)

const (
	// MaxPage bounds what List returns.
	MaxPage = 200
	// pageBytes bounds what one look at the stream holds in memory, beside the last message that passes it.
	pageBytes = 4 << 20
)

// Letter is a dead letter.
type Letter struct {
	Info
	// ID is its sequence in the stream of dead letters.
	ID uint64
	// Size of the payload in bytes.
	Size int
	// Omitted is the size of a payload that could not be stored.
	Omitted int
	// Data and Header are the message's; List leaves them empty.
	Data   []byte
	Header nats.Header
}

// Queue is all dead letters. Its methods give fault.Unavailable when the stream cannot be reached.
type Queue struct {
	js  jetstream.JetStream
	log eventlog.Log
}

// New is the queue on a connection, with the log that decisions are recorded in; topology must have made its stream. List and Show
// need no log.
func New(js jetstream.JetStream, log eventlog.Log) *Queue { return &Queue{js: js, log: log} }

// Filter of a list. The zero Filter is the first page of all.
type Filter struct {
	// Service and Consumer are subject tokens; empty is any.
	Service, Consumer string
	// Stream where the message stood, Reason as in Info, Cause as in Info.FaultReason; empty is any.
	Stream, Reason, Cause string
	// Before and Since bound Info.Died; zero is no bound.
	Before, Since time.Time
	// After is the ID of the last letter of the page before.
	After uint64
	// Limit is 1 to MaxPage, by default 50.
	Limit int
}

func (f Filter) check() (Filter, error) {
	if f.Limit == 0 {
		f.Limit = 50
	}
	if f.Limit < 1 || f.Limit > MaxPage {
		return f, fault.Newf(fault.InvalidArgument, fault.ReasonValidation, "limit can be 1 to %d", MaxPage)
	}
	for _, token := range []*string{&f.Service, &f.Consumer} {
		if *token == "" {
			*token = "*"
		} else if !subject.ValidToken(*token) {
			return f, fault.New(fault.InvalidArgument, fault.ReasonValidation, "that is not the name of a service or consumer")
		}
	}
	return f, nil
}

func (f Filter) wants(i Info) bool {
	matches := func(want, is string) bool { return want == "" || strings.EqualFold(want, is) }
	return matches(f.Stream, i.Stream) && matches(f.Reason, i.Reason) && matches(f.Cause, i.FaultReason) &&
		(f.Before.IsZero() || i.Died.Before(f.Before)) && (f.Since.IsZero() || !i.Died.Before(f.Since))
}

// List returns letters, oldest first, without their payloads. Fewer than Filter.Limit: there are no more.
func (q *Queue) List(ctx context.Context, f Filter) ([]Letter, error) {
	f, err := f.check()
	if err != nil {
		return nil, err
	}
	var all []Letter
	for next := f.After + 1; ; {
		page, left, err := directget.Page(ctx, q.js, topology.StreamDead, subject.DeadLetter(f.Service, f.Consumer, ">"), next, MaxPage, pageBytes)
		if err != nil {
			return nil, unavailable("read dead letters", err)
		}
		for _, m := range page {
			l := letter(m.Seq, m.Header, m.Data)
			if l.Data, l.Header = nil, nil; f.wants(l.Info) {
				all = append(all, l)
			}
			if len(all) == f.Limit {
				return all, nil
			}
			next = m.Seq + 1
		}
		if left == 0 || len(page) == 0 {
			return all, nil
		}
	}
}

// Show returns a letter with its payload, or fault.NotFound.
func (q *Queue) Show(ctx context.Context, id uint64) (Letter, error) {
	s, err := q.stream(ctx)
	if err != nil {
		return Letter{}, err
	}
	m, err := s.GetMsg(ctx, id)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return Letter{}, missing(id)
	}
	if err != nil {
		return Letter{}, unavailable("read dead letter", err)
	}
	return letter(m.Sequence, m.Header, m.Data), nil
}

// remove deletes a letter for good; one that is gone already is no error.
func (q *Queue) remove(ctx context.Context, id uint64) error {
	s, err := q.stream(ctx)
	if err != nil {
		return err
	}
	err = s.DeleteMsg(ctx, id)
	if err == nil {
		return nil
	}
	// The server has one error for a deletion that failed and for a letter that is not there.
	if _, e := s.GetMsg(ctx, id); errors.Is(e, jetstream.ErrMsgNotFound) {
		return nil
	}
	return unavailable("delete dead letter", err)
}

func (q *Queue) stream(ctx context.Context) (jetstream.Stream, error) {
	s, err := q.js.Stream(ctx, topology.StreamDead)
	if err != nil {
		return nil, unavailable("open dead letters", err)
	}
	return s, nil
}

func letter(id uint64, h nats.Header, data []byte) Letter {
	l := Letter{Info: parse(h), ID: id, Size: len(data), Data: data, Header: h}
	if l.Omitted, _ = strconv.Atoi(h.Get(headerOmitted)); l.Omitted < 0 {
		l.Omitted = 0
	}
	return l
}

func missing(id uint64) error {
	return fault.Newf(fault.NotFound, fault.ReasonDeadLetterNotFound, "there is no dead letter %d", id)
}

func unavailable(what string, err error) error {
	return fault.New(fault.Unavailable, fault.ReasonLogUnavailable, "the dead letters cannot be reached").
		Because(fmt.Errorf("%s: %w", what, err))
}
