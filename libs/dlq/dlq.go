// Package dlq keeps messages that no handler could take, until a person has looked at them: list, show, redrive, drop. What a
// person decides is an event: the letter is an aggregate, and its first event is the decision.
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

	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/subject"
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
)

// Info is what is known about a message that died.
type Info struct {
	Service, Consumer string
	// Reason is one of ReasonPoison, ReasonAttempts and ReasonPanic.
	Reason string
	// Attempts counts deliveries.
	Attempts int
	// Stream, Seq and Subject are where the message stood.
	Stream  string
	Seq     uint64
	Subject string
	// MessageID is its Nats-Msg-Id, if it had one; Store takes it from the headers.
	MessageID string
	// Code, FaultReason and Error are what Explain says of the last failure: safe to show.
	Code, FaultReason, Error string
	// Stored is when the message was stored first, Died when it was given up.
	Stored, Died time.Time
}

// Why fills in what Explain says of a failure.
func (i Info) Why(err error) Info {
	code, reason, sentence := Explain(err)
	i.Code, i.FaultReason, i.Error = string(code), string(reason), sentence
	return i
}

// LetterID names the letter: one message that one consumer sets aside is one letter, however often it is set aside.
func (i Info) LetterID() string {
	return ids.Derive("letter", i.Consumer, i.Stream, strconv.FormatUint(i.Seq, 10), strconv.FormatInt(i.Stored.UnixNano(), 10))
}

// Aggregate is where the decision about the letter stands.
func (i Info) Aggregate() subject.Aggregate {
	return subject.Letter(subject.TenantOf(i.Subject), i.LetterID())
}

// Store stores a message as a dead letter. Stored twice within ten
// minutes it is one letter. Its payload stays away where it does not fit beside
// the letter's headers; Letter.Omitted says so then. Error and the other fields of i must be safe to show.
func Store(ctx context.Context, js jetstream.JetStream, i Info, h nats.Header, data []byte) error {
	m := nats.NewMsg(subject.DeadLetter(i.Service, i.Consumer, i.Subject))
	m.Data = data
	for k, v := range h {
		if own(k) {
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

// own reports whether a header is the message's own. The server's would guard or deduplicate the dead letter instead of the message,
// and those of a letter are for us to write, whatever a message claims.
func own(header string) bool {
	lower := strings.ToLower(header)
	return !strings.HasPrefix(lower, "nats-") && !strings.HasPrefix(lower, strings.ToLower(prefix))
}

// put writes i into the headers of a dead letter. Its own Nats-Msg-Id makes one letter of a message that is buried twice.
func (i Info) put(h nats.Header) {
	for k, v := range map[string]string{
		headerService: i.Service, headerConsumer: i.Consumer, headerReason: i.Reason, headerAttempts: strconv.Itoa(i.Attempts),
		headerStream: i.Stream, headerSeq: strconv.FormatUint(i.Seq, 10), headerSubject: i.Subject,
		headerMessageID: i.MessageID, headerCode: i.Code, headerFaultReason: i.FaultReason, headerError: bounded(i.Error),
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
