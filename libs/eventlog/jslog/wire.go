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

	"github.com/sandtrail/sandtrail/libs/directget"
	"github.com/sandtrail/sandtrail/libs/topology"
)

// Headers of JetStream that nats.go does not name.
const (
	headerBatchID     = "Nats-Batch-Id"
	headerBatchSeq    = "Nats-Batch-Sequence"
	headerBatchCommit = "Nats-Batch-Commit"
)

// pageBytes bounds what the server sends for one page, in bytes.
const pageBytes = 8 << 20

// wire talks to the server.
type wire struct{ js jetstream.JetStream }

// stored is a message as it stands in the stream.
type stored = directget.Message

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
	return directget.Page(ctx, w.js, topology.StreamEvents, subject, from, n, pageBytes)
}

// leaderPage reads one message after the other, because only the plain get is answered by the leader.
func (w wire) leaderPage(ctx context.Context, subject string, from uint64, n int) ([]stored, int, error) {
	var messages []stored
	for len(messages) < n {
		m, err := directget.Leader(ctx, w.js, topology.StreamEvents, subject, from)
		if err != nil || m == nil {
			return messages, 0, err
		}
		messages = append(messages, *m)
		from = m.Seq + 1
	}
	return messages, 0, nil
}

func (w wire) leaderLast(ctx context.Context, filter string) (*stored, error) {
	return directget.LeaderLast(ctx, w.js, topology.StreamEvents, filter)
}

func (w wire) last(ctx context.Context, filter string, n int) ([]string, error) {
	messages, err := directget.Last(ctx, w.js, topology.StreamEvents, filter, n)
	subjects := make([]string, len(messages))
	for i, m := range messages {
		subjects[i] = m.Subject
	}
	return subjects, err
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
