// Package directget reads stored messages without a consumer, in pages, and notices when a page did not arrive whole: a history
// with a hole in it must not pass for a whole one. (orbit's GetBatch ends silently on a timeout.)
package directget

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Headers of JetStream that nats.go does not name.
const (
	headerStatus       = "Status"
	headerPending      = "Nats-Num-Pending"
	headerLastSequence = "Nats-Last-Sequence"

	statusEnd     = "204"
	statusMissing = "404"
)

// ErrGap: the server sent more than arrived. Read again.
var ErrGap = errors.New("messages of a direct get were lost on the way")

// wait bounds one page whose caller gave no deadline: a server that is gone does not answer at all.
const wait = 10 * time.Second

// silence is how long a page may bring nothing before it is asked for again: a request, or its answer, that was under way when a
// connection or a server broke never comes. Each further attempt is given twice the time, so that a slow server is not asked more than it
// can answer.
const silence = time.Second

// Message is a message as it stands in a stream.
type Message struct {
	Subject string
	Seq     uint64
	Header  nats.Header
	Data    []byte
	// Stored is when the server stored it, by its own clock. Only the leader tells; zero from all others.
	Stored time.Time
}

// Page gives at most n messages, and about maxBytes, of a subject or filter from stream sequence from on, and how many there are
// behind them.
func Page(ctx context.Context, js jetstream.JetStream, stream, subject string, from uint64, n, maxBytes int) ([]Message, int, error) {
	return get(ctx, js, stream, n, map[string]any{"seq": max(from, 1), "next_by_subj": subject, "batch": n, "max_bytes": maxBytes})
}

// SeqAt is the sequence of the first message of a subject or filter that was stored at a time or later, 0 without one.
func SeqAt(ctx context.Context, js jetstream.JetStream, stream, subject string, at time.Time) (uint64, error) {
	messages, _, err := get(ctx, js, stream, 1, map[string]any{"start_time": at.UTC(), "next_by_subj": subject, "batch": 1})
	if err != nil || len(messages) == 0 {
		return 0, err
	}
	return messages[0].Seq, nil
}

// Leader gives the first message of a subject or filter from a sequence on, nil without one. Unlike the others it asks the leader of the
// stream, not any replica: what is not there does not exist.
func Leader(ctx context.Context, js jetstream.JetStream, stream, subject string, from uint64) (*Message, error) {
	return leader(ctx, js, stream, map[string]any{"seq": max(from, 1), "next_by_subj": subject})
}

// LeaderLast gives the last message of a subject or filter, nil without one, as the leader of the stream has it.
func LeaderLast(ctx context.Context, js jetstream.JetStream, stream, subject string) (*Message, error) {
	return leader(ctx, js, stream, map[string]any{"last_by_subj": subject})
}

func leader(ctx context.Context, js jetstream.JetStream, stream string, what map[string]any) (*Message, error) {
	body, err := json.Marshal(what)
	if err != nil {
		return nil, fmt.Errorf("get from the leader: %w", err)
	}
	reply, err := request(ctx, js, API(js, "STREAM.MSG.GET."+stream), body)
	if err != nil {
		return nil, fmt.Errorf("get from the leader: %w", err)
	}
	var answer struct {
		Error   *jetstream.APIError `json:"error"`
		Message struct {
			Subject string    `json:"subject"`
			Seq     uint64    `json:"seq"`
			Header  []byte    `json:"hdrs"`
			Data    []byte    `json:"data"`
			Time    time.Time `json:"time"`
		} `json:"message"`
	}
	if err := json.Unmarshal(reply.Data, &answer); err != nil {
		return nil, fmt.Errorf("get from the leader: %w", err)
	}
	if answer.Error != nil {
		if answer.Error.ErrorCode == jetstream.JSErrCodeMessageNotFound {
			return nil, nil // there is none, and that is no error
		}
		return nil, fmt.Errorf("get from the leader: %w", answer.Error)
	}
	header := nats.Header{}
	if len(answer.Message.Header) > 0 {
		if header, err = nats.DecodeHeadersMsg(answer.Message.Header); err != nil {
			return nil, fmt.Errorf("get from the leader: %w", err)
		}
	}
	return &Message{Subject: answer.Message.Subject, Seq: answer.Message.Seq, Header: header, Data: answer.Message.Data, Stored: answer.Message.Time}, nil
}

// request asks until there is an answer or ctx ends, at most for wait. A stream without a leader does not answer.
func request(ctx context.Context, js jetstream.JetStream, subject string, body []byte) (*nats.Msg, error) {
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, wait)
		defer cancel()
	}
	for patience := silence; ; patience *= 2 {
		attempt, cancel := context.WithTimeout(ctx, patience)
		m, err := js.Conn().RequestWithContext(attempt, subject, body)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			return m, err
		}
	}
}

// Last gives the last message of each of at most n subjects that match a filter. More than 1,024 are refused by the server.
func Last(ctx context.Context, js jetstream.JetStream, stream, filter string, n int) ([]Message, error) {
	messages, _, err := get(ctx, js, stream, n, map[string]any{"multi_last": []string{filter}, "batch": n})
	return messages, err
}

// Each gives every message of a subject or filter from a sequence on to fn, until the stream's present end or until fn fails.
func Each(ctx context.Context, js jetstream.JetStream, stream, subject string, from uint64, fn func(Message) error) error {
	const (
		page  = 500
		bytes = 4 << 20
	)
	for {
		messages, pending, err := Page(ctx, js, stream, subject, from, page, bytes)
		if err != nil {
			return err
		}
		for _, m := range messages {
			if err := fn(m); err != nil {
				return err
			}
			from = m.Seq + 1
		}
		if pending == 0 || len(messages) == 0 {
			return nil
		}
	}
}

// get asks for a batch by direct get and checks that all of it arrived: each message names the one before it, and the end of
// the batch names the last. A history with a hole in it must not pass for a whole one.
//
// It gives at most n messages.
func get(ctx context.Context, js jetstream.JetStream, stream string, n int, request map[string]any) ([]Message, int, error) {
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, wait)
		defer cancel()
	}
	body, err := json.Marshal(request)
	if err != nil {
		return nil, 0, fmt.Errorf("direct get: %w", err)
	}
	for patience := silence; ; patience *= 2 {
		messages, pending, err := ask(ctx, js, stream, n, body, patience)
		if !errors.Is(err, errSilent) {
			return messages, pending, err
		}
	}
}

// errSilent: nothing has come for too long.
var errSilent = errors.New("no answer")

// ask asks once; errSilent where nothing comes for as long as patience.
func ask(ctx context.Context, js jetstream.JetStream, stream string, n int, body []byte, patience time.Duration) ([]Message, int, error) {
	nc := js.Conn()
	inbox := nc.NewInbox()
	// A synchronous subscription would allocate room for 65,536 messages, which costs more than the call itself.
	replies := make(chan *nats.Msg, n+1)
	sub, err := nc.ChanSubscribe(inbox, replies)
	if err != nil {
		return nil, 0, fmt.Errorf("direct get: %w", err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := nc.PublishRequest(API(js, "DIRECT.GET."+stream), inbox, body); err != nil {
		return nil, 0, fmt.Errorf("direct get: %w", err)
	}
	var (
		messages []Message
		previous uint64
	)
	quiet := time.NewTimer(patience)
	defer quiet.Stop()
	for {
		var m *nats.Msg
		select {
		case m = <-replies:
			quiet.Reset(patience)
		case <-quiet.C:
			return nil, 0, errSilent
		case <-ctx.Done():
			return nil, 0, fmt.Errorf("direct get: %w", ctx.Err())
		}
		if m.Header.Get(jetstream.SequenceHeader) == "" {
			pending, err := end(m, previous)
			return messages, pending, err
		}
		seq, err := number(m, jetstream.SequenceHeader)
		if err != nil {
			return nil, 0, err
		}
		if before, err := number(m, headerLastSequence); err != nil || before != previous {
			return nil, 0, errors.Join(ErrGap, err)
		}
		messages = append(messages, Message{Subject: m.Header.Get(jetstream.SubjectHeader), Seq: seq, Header: m.Header, Data: m.Data})
		previous = seq
	}
}

// end reads the message that ends a batch: how many more there are.
func end(m *nats.Msg, previous uint64) (pending int, err error) {
	switch status := m.Header.Get(headerStatus); {
	case status == statusMissing && previous == 0:
		return 0, nil
	case status != statusEnd:
		return 0, fmt.Errorf("direct get: status %s %s", status, m.Header.Get("Description"))
	}
	if last, err := number(m, headerLastSequence); err != nil || last != previous {
		return 0, errors.Join(ErrGap, err)
	}
	n, err := number(m, headerPending)
	return int(n), err // a count of messages
}

func number(m *nats.Msg, header string) (uint64, error) {
	n, err := strconv.ParseUint(m.Header.Get(header), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("direct get: header %s: %w", header, err)
	}
	return n, nil
}

// API is the subject of a JetStream call, in the domain of the connection.
func API(js jetstream.JetStream, call string) string {
	switch o := js.Options(); {
	case o.APIPrefix != "":
		return strings.TrimSuffix(o.APIPrefix, ".") + "." + call
	case o.Domain != "":
		return "$JS." + o.Domain + ".API." + call
	default:
		return "$JS.API." + call
	}
}
