// Package dlq keeps messages that no handler could take, until a person has looked at them: list, show, redrive, drop.
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

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
)

const (
	prefix = "Sandtrail-Dead-"

	headerService     = prefix + "Service"
	headerConsumer    = prefix + "Consumer"
	headerReason      = prefix + "Reason"
	headerAttempts    = prefix + "Attempts"
	headerStream      = prefix + "Stream"
	headerSeq         = prefix + "Seq"
	headerSubject     = prefix + "Subject"
	headerMessageID   = prefix + "Message-Id"
	headerCode        = prefix + "Code"
	headerFaultReason = prefix + "Fault"
	headerError       = prefix + "Error"
	headerStored      = prefix + "Stored"
	headerDied        = prefix + "Died"
	// headerOmitted is the size in bytes of a payload that was too large to be stored with the letter's headers.
	headerOmitted = prefix + "Omitted"

	// MaxPage bounds what List returns.
	MaxPage = 200
)

// Info is what is known about a message that died.
type Info struct {
	Service, Consumer string
	// Reason is poison, attempts or panic.
	Reason string
	// Attempts counts deliveries.
	Attempts int
	// Stream, Seq and Subject are where the message stood.
	Stream  string
	Seq     uint64
	Subject string
	// MessageID is its Nats-Msg-Id, if it had one; Store takes it from the headers.
	MessageID string
	// Code, FaultReason and Error are of the last fault: safe to show.
	Code, FaultReason, Error string
	// Stored is when the message was stored first, Died when it was given up.
	Stored, Died time.Time
}

// Store stores a message as a dead letter. Stored twice within ten
// minutes it is one letter. Its payload stays away where it does not fit beside
// the letter's headers; Letter.Omitted says so then. Error and the other fields of i must be safe to show.
func Store(ctx context.Context, js jetstream.JetStream, i Info, h nats.Header, data []byte) error {
	m := nats.NewMsg(subject.DeadLetter(i.Service, i.Consumer, i.Subject))
	m.Data = data
	for k, v := range h {
		// The server's own headers would guard or deduplicate the dead letter instead of the message.
		if !strings.HasPrefix(strings.ToLower(k), "nats-") {
			m.Header[k] = v
		}
	}
	i.MessageID = h.Get(nats.MsgIdHdr)
	i.put(m.Header)
	_, err := js.PublishMsg(ctx, m)
	if errors.Is(err, nats.ErrMaxPayload) {
		m.Header.Set(headerOmitted, strconv.Itoa(len(data)))
		m.Data = nil
		_, err = js.PublishMsg(ctx, m)
	}
	if err != nil {
		return fmt.Errorf("store dead letter: %w", err)
	}
	return nil
}

// put writes i into the headers of a dead letter. Its own Nats-Msg-Id makes one letter of a message that is buried twice.
func (i Info) put(h nats.Header) {
	for k, v := range map[string]string{
		headerService: i.Service, headerConsumer: i.Consumer, headerReason: i.Reason, headerAttempts: strconv.Itoa(i.Attempts),
		headerStream: i.Stream, headerSeq: strconv.FormatUint(i.Seq, 10), headerSubject: i.Subject,
		headerMessageID: i.MessageID, headerCode: i.Code, headerFaultReason: i.FaultReason, headerError: oneLine(i.Error),
		headerStored: i.Stored.UTC().Format(time.RFC3339Nano), headerDied: i.Died.UTC().Format(time.RFC3339Nano),
	} {
		if v != "" {
			h.Set(k, v)
		}
	}
	h.Set(nats.MsgIdHdr, fmt.Sprintf("dead-%s-%s-%d-%d", i.Consumer, i.Stream, i.Seq, i.Stored.UnixNano()))
}

func oneLine(s string) string {
	return strings.Join(strings.Fields(s), " ")
}

func parse(h nats.Header) Info {
	i := Info{
		Service: h.Get(headerService), Consumer: h.Get(headerConsumer), Reason: h.Get(headerReason),
		Stream: h.Get(headerStream), Subject: h.Get(headerSubject), MessageID: h.Get(headerMessageID),
		Code: h.Get(headerCode), FaultReason: h.Get(headerFaultReason), Error: h.Get(headerError),
	}
	// What does not parse stays zero: a letter must be shown also when something else wrote it.
	i.Attempts, _ = strconv.Atoi(h.Get(headerAttempts))
	i.Seq, _ = strconv.ParseUint(h.Get(headerSeq), 10, 64)
	i.Stored, _ = time.Parse(time.RFC3339Nano, h.Get(headerStored))
	i.Died, _ = time.Parse(time.RFC3339Nano, h.Get(headerDied))
	return i
}

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
	js jetstream.JetStream
}

// New is the queue on a connection; topology must have made its stream.
func New(js jetstream.JetStream) *Queue { return &Queue{js: js} }

// Filter of a list. The zero Filter is the first page of all.
type Filter struct {
	// Service and Consumer are subject tokens; empty is any.
	Service, Consumer string
	// After is the ID of the last letter of the page before.
	After uint64
	// Limit is 1 to MaxPage, by default 50.
	Limit int
}

// List returns letters, oldest first, without their payloads.
func (q *Queue) List(ctx context.Context, f Filter) ([]Letter, error) {
	if f.Limit == 0 {
		f.Limit = 50
	}
	if f.Limit < 1 || f.Limit > MaxPage {
		return nil, fault.Newf(fault.InvalidArgument, fault.ReasonValidation, "limit can be 1 to %d", MaxPage)
	}
	for _, token := range []*string{&f.Service, &f.Consumer} {
		if *token == "" {
			*token = "*"
		} else if !subject.ValidToken(*token) {
			return nil, fault.New(fault.InvalidArgument, fault.ReasonValidation, "that is not the name of a service or consumer")
		}
	}
	s, err := q.stream(ctx)
	if err != nil {
		return nil, err
	}
	var all []Letter
	for next := f.After + 1; len(all) < f.Limit; {
		m, err := s.GetMsg(ctx, next, jetstream.WithGetMsgSubject(subject.DeadLetter(f.Service, f.Consumer, ">")))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return all, nil
		}
		if err != nil {
			return nil, unavailable("read dead letter", err)
		}
		l := letter(m)
		l.Data, l.Header = nil, nil
		all = append(all, l)
		next = m.Sequence + 1
	}
	return all, nil
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
	return letter(m), nil
}

// Redrive puts a letter's message back where it stood, as a new one, drops the letter and returns the message's new sequence.
// Only commands can be: an event stands in the log once and for all, what failed on it catches up by reading it again.
// Redriving a letter twice makes one message.
func (q *Queue) Redrive(ctx context.Context, id uint64) (uint64, error) {
	l, err := q.Show(ctx, id)
	if err != nil {
		return 0, err
	}
	if l.Stream != topology.StreamCommands {
		return 0, fault.New(fault.FailedPrecondition, fault.ReasonIllegalState,
			"only commands can be redriven; for an event reset its consumer or rebuild the projection")
	}
	if l.Omitted > 0 {
		return 0, fault.New(fault.FailedPrecondition, fault.ReasonTooLarge, "the payload was too large to be kept")
	}
	m := nats.NewMsg(l.Subject)
	m.Data = l.Data
	for k, v := range l.Header {
		if !strings.HasPrefix(k, prefix) && !strings.HasPrefix(strings.ToLower(k), "nats-") {
			m.Header[k] = v
		}
	}
	// Not the old id: the stream may still remember it and would swallow the message.
	ack, err := q.js.PublishMsg(ctx, m,
		jetstream.WithMsgID(fmt.Sprintf("redrive-%d-%d", id, l.Died.UnixNano())), jetstream.WithExpectStream(l.Stream))
	if err != nil {
		return 0, unavailable("publish message", err)
	}
	return ack.Sequence, q.Drop(ctx, id)
}

// Drop deletes a letter for good. One that is gone already is fault.NotFound.
func (q *Queue) Drop(ctx context.Context, id uint64) error {
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
		return missing(id)
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

func letter(m *jetstream.RawStreamMsg) Letter {
	l := Letter{Info: parse(m.Header), ID: m.Sequence, Size: len(m.Data), Data: m.Data, Header: m.Header}
	l.Omitted, _ = strconv.Atoi(m.Header.Get(headerOmitted))
	return l
}

func missing(id uint64) error {
	return fault.Newf(fault.NotFound, fault.ReasonDeadLetterNotFound, "there is no dead letter %d", id)
}

func unavailable(what string, err error) error {
	return fault.New(fault.Unavailable, fault.ReasonLogUnavailable, "the dead letters cannot be reached").
		Because(fmt.Errorf("%s: %w", what, err))
}
