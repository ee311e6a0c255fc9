package jslog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/sandtrail/sandtrail/libs/topology"
)

// Headers of JetStream that nats.go does not name.
const (
	headerBatchID      = "Nats-Batch-Id"
	headerBatchSeq     = "Nats-Batch-Sequence"
	headerBatchCommit  = "Nats-Batch-Commit"
	headerStatus       = "Status"
	headerPending      = "Nats-Num-Pending"
	headerLastSequence = "Nats-Last-Sequence"

	statusEnd     = "204"
	statusMissing = "404"
)

// pageBytes bounds what the server sends for one page, in bytes.
const pageBytes = 8 << 20

// errGap: the server sent more than arrived.
var errGap = errors.New("messages of a direct get were lost on the way")

// wire talks to the server.
type wire struct{ js jetstream.JetStream }

// stored is a message as it stands in the stream.
type stored struct {
	subject string
	seq     uint64
	header  nats.Header
	data    []byte
}

// publish stores one message by a plain publish and several as an atomic batch.
func (w wire) publish(ctx context.Context, messages []*nats.Msg) (ack, error) {
	if len(messages) > 1 {
		return w.publishBatch(ctx, messages)
	}
	// The caller tries again by itself, having looked at what happened.
	a, err := w.js.PublishMsg(ctx, messages[0], jetstream.WithRetryAttempts(0))
	if err != nil {
		return ack{}, err
	}
	return ack{seq: a.Sequence, duplicate: a.Duplicate}, nil
}

// publishBatch sends all but the last message without waiting: whatever is wrong with them, the commit is refused.
func (w wire) publishBatch(ctx context.Context, messages []*nats.Msg) (ack, error) {
	nc, id := w.js.Conn(), nuid.Next()
	for i, m := range messages {
		m.Header.Set(headerBatchID, id)
		m.Header.Set(headerBatchSeq, strconv.Itoa(i+1))
		if i < len(messages)-1 {
			if err := nc.PublishMsg(m); err != nil {
				return ack{}, fmt.Errorf("publish message %d of a batch: %w", i+1, err)
			}
		}
	}
	last := messages[len(messages)-1]
	last.Header.Set(headerBatchCommit, "1")
	reply, err := nc.RequestMsgWithContext(ctx, last)
	if err != nil {
		return ack{}, fmt.Errorf("commit a batch: %w", err)
	}
	var answer struct {
		Error    *jetstream.APIError `json:"error"`
		Sequence uint64              `json:"seq"`
		Count    int                 `json:"count"`
	}
	if err := json.Unmarshal(reply.Data, &answer); err != nil {
		return ack{}, fmt.Errorf("read the answer to a batch: %w", err)
	}
	if answer.Error != nil {
		return ack{}, answer.Error
	}
	if answer.Count != len(messages) || answer.Sequence < uint64(answer.Count) {
		return ack{}, fmt.Errorf("%w: %d of %d messages of a batch", jetstream.ErrInvalidJSAck, answer.Count, len(messages))
	}
	return ack{seq: answer.Sequence}, nil
}

func (w wire) page(ctx context.Context, subject string, from uint64, n int) ([]stored, int, error) {
	return w.get(ctx, n, map[string]any{"seq": from, "next_by_subj": subject, "batch": n, "max_bytes": pageBytes})
}

// leaderPage reads one message after the other, because only the plain get is answered by the leader.
func (w wire) leaderPage(ctx context.Context, subject string, from uint64, n int) ([]stored, int, error) {
	var messages []stored
	for len(messages) < n {
		m, err := w.leaderGet(ctx, subject, from)
		if err != nil || m == nil {
			return messages, 0, err
		}
		messages = append(messages, *m)
		from = m.seq + 1
	}
	return messages, 0, nil
}

// leaderGet reads the first message of a subject from a sequence on; nil when there is none.
func (w wire) leaderGet(ctx context.Context, subject string, from uint64) (*stored, error) {
	body, err := json.Marshal(map[string]any{"seq": from, "next_by_subj": subject})
	if err != nil {
		return nil, fmt.Errorf("get from the leader: %w", err)
	}
	reply, err := w.js.Conn().RequestWithContext(ctx, w.api("STREAM.MSG.GET."+topology.StreamEvents), body)
	if err != nil {
		return nil, fmt.Errorf("get from the leader: %w", err)
	}
	var answer struct {
		Error   *jetstream.APIError `json:"error"`
		Message struct {
			Subject string `json:"subject"`
			Seq     uint64 `json:"seq"`
			Header  []byte `json:"hdrs"`
			Data    []byte `json:"data"`
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
	header, err := nats.DecodeHeadersMsg(answer.Message.Header)
	if err != nil {
		return nil, fmt.Errorf("get from the leader: %w", err)
	}
	return &stored{answer.Message.Subject, answer.Message.Seq, header, answer.Message.Data}, nil
}

func (w wire) last(ctx context.Context, filter string, n int) ([]string, error) {
	messages, _, err := w.get(ctx, n, map[string]any{"multi_last": []string{filter}, "batch": n})
	subjects := make([]string, len(messages))
	for i, m := range messages {
		subjects[i] = m.subject
	}
	return subjects, err
}

// get asks for a batch by direct get and checks that all of it arrived: each message names the one before it, and the end of
// the batch names the last. A history with a hole in it must not pass for a whole one.
//
// It gives at most n messages.
func (w wire) get(ctx context.Context, n int, request map[string]any) ([]stored, int, error) {
	body, err := json.Marshal(request)
	if err != nil {
		return nil, 0, fmt.Errorf("direct get: %w", err)
	}
	nc := w.js.Conn()
	inbox := nc.NewInbox()
	// A synchronous subscription would allocate room for 65,536 messages, which costs more than the call itself.
	replies := make(chan *nats.Msg, n+1)
	sub, err := nc.ChanSubscribe(inbox, replies)
	if err != nil {
		return nil, 0, fmt.Errorf("direct get: %w", err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := nc.PublishRequest(w.api("DIRECT.GET."+topology.StreamEvents), inbox, body); err != nil {
		return nil, 0, fmt.Errorf("direct get: %w", err)
	}
	var (
		messages []stored
		previous uint64
	)
	for {
		var m *nats.Msg
		select {
		case m = <-replies:
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
			return nil, 0, errors.Join(errGap, err)
		}
		messages = append(messages, stored{m.Header.Get(jetstream.SubjectHeader), seq, m.Header, m.Data})
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
		return 0, errors.Join(errGap, err)
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

// api is the subject of a JetStream call, in the domain of the connection.
func (w wire) api(call string) string {
	switch o := w.js.Options(); {
	case o.APIPrefix != "":
		return strings.TrimSuffix(o.APIPrefix, ".") + "." + call
	case o.Domain != "":
		return "$JS." + o.Domain + ".API." + call
	default:
		return "$JS.API." + call
	}
}

// why is the kind of an answer to a publish.
type why int

const (
	whyUnknown   why = iota // it may be stored or not
	whyAgain                // it is not stored, and may be at another attempt
	whyMismatch             // the subject's tail is another one, or about to be
	whyDuplicate            // an id is stored already
	whyFull
	whyTooLarge
	whyRefused
)

// Error codes of the server (server/errors.json).
const (
	codeStoreFailed       = 10077 // its description says why
	codeNoStorage         = 10047
	codeNoMemory          = 10028
	codeResources         = 10023
	codeAccountLimit      = 10002
	codeMsgTooLarge       = 10054
	codeUnavailable       = 10008
	codeTooManyRequests   = 10167
	codeBatchInFlight     = 10210
	codeBatchIncomplete   = 10176
	codeDuplicateInBatch  = 10201
	codeDuplicateConflict = 10158
	codeWrongLast         = jetstream.JSErrCodeStreamWrongLastSequence
	codeWrongLastConstant = jetstream.JSErrCodeStreamWrongLastSequenceConstant
	codeNotLeader         = 10009
	codeStreamOffline     = 10118
)

// classify says what an answer means that is not a plain acknowledgement; nil is one that says "duplicate".
func classify(err error) why {
	if err == nil {
		return whyDuplicate
	}
	if errors.Is(err, nats.ErrMaxPayload) {
		return whyTooLarge
	}
	var js jetstream.JetStreamError
	var api *jetstream.APIError
	if !errors.As(err, &api) {
		if !errors.As(err, &js) || js.APIError() == nil {
			return whyUnknown
		}
		api = js.APIError()
	}
	switch api.ErrorCode {
	case codeWrongLast, codeWrongLastConstant, codeDuplicateConflict:
		return whyMismatch
	case codeDuplicateInBatch:
		return whyDuplicate
	case codeStoreFailed:
		if strings.Contains(api.Description, "exceeded") || strings.Contains(api.Description, "no space left") {
			return whyFull
		}
		return whyUnknown
	case codeNoStorage, codeNoMemory, codeResources, codeAccountLimit:
		return whyFull
	case codeMsgTooLarge:
		return whyTooLarge
	case codeTooManyRequests, codeBatchInFlight, codeBatchIncomplete, codeUnavailable, codeNotLeader, codeStreamOffline:
		return whyAgain
	}
	if api.Code >= 500 {
		return whyUnknown
	}
	return whyRefused
}
