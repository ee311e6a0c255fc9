// Package envelope puts an event into a NATS message and takes it out again: the protobuf body is the message's data, all
// about it is in headers, so that `nats stream view` shows an event's story without decoding anything.
package envelope

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	// Every event type must be in the registry before any is decoded.
	_ "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

// Header names.
const (
	HeaderID          = "Nats-Msg-Id"
	HeaderType        = "Sandtrail-Type"
	HeaderSchema      = "Sandtrail-Schema"
	HeaderTenant      = "Sandtrail-Tenant"
	HeaderActor       = "Sandtrail-Actor"
	HeaderCause       = "Sandtrail-Cause"
	HeaderCorrelation = "Sandtrail-Correlation"
	HeaderTime        = "Sandtrail-Time"
	HeaderDigest      = "Sandtrail-Digest"
	HeaderTraceparent = "traceparent"
	HeaderTracestate  = "tracestate"
)

// chained are the headers that the digest covers, in its order. Trace context is not a fact and stays out.
var chained = []string{
	HeaderID, HeaderType, HeaderSchema, HeaderTenant, HeaderActor, HeaderCause, HeaderCorrelation, HeaderTime,
}

// Meta is what is known about an event beside its body.
type Meta struct {
	// ID is derived from the command and the event's index in its decision, see ids.Event.
	ID string
	// Type is the body's full protobuf name.
	Type string
	// Schema is the version of the body's meaning, from 1.
	Schema int
	Tenant string
	// Actor is who asked: key:<prefix>, dev, or service:<name>.
	Actor string
	// Cause is the id of the command or event that led here.
	Cause       string
	Correlation string
	// Time is when it was decided, UTC.
	Time        time.Time
	Traceparent string
	Tracestate  string
}

// Event is an event to be appended. Meta.Type and Meta.Schema are filled in from Body where they are empty.
type Event struct {
	Meta
	Body proto.Message
}

// Recorded is an event as it stands in the log.
type Recorded struct {
	Meta
	Subject string
	// Seq is the stream sequence.
	Seq uint64
	// Digest is sha256(previous digest of the aggregate, headers, data), 32 bytes.
	Digest []byte
	// Data is the body as stored.
	Data []byte
	// Body is Data decoded; nil where the type is unknown to this program.
	Body proto.Message
	// Found is set in what an append gives that found its events in the log: an earlier append, or an attempt whose answer was lost, had
	// stored them, and more may stand behind them by now.
	Found bool
}

// Digest chains one event to the one before it: sha256(previous, each chained header's value and data behind its length).
// previous is nil for the first event of an aggregate.
func Digest(previous []byte, h nats.Header, data []byte) []byte {
	// One buffer and one write: this is on the path of every append.
	size := len(previous) + len(data) + 64
	for _, k := range chained {
		size += len(h.Get(k)) + 4
	}
	b := append(make([]byte, 0, size), previous...)
	for _, k := range chained {
		v := h.Get(k)
		b = append(strconv.AppendInt(b, int64(len(v)), 10), ':')
		b = append(b, v...)
	}
	b = append(strconv.AppendInt(b, int64(len(data)), 10), ':')
	sum := sha256.Sum256(append(b, data...))
	return sum[:]
}

// Encode makes the message of an event on a subject, chained behind previous, and returns it with its digest.
func Encode(subject string, e Event, previous []byte) (*nats.Msg, []byte, error) {
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(e.Body)
	if err != nil {
		return nil, nil, fmt.Errorf("encode event body: %w", err)
	}
	if e.Type == "" {
		e.Type = string(e.Body.ProtoReflect().Descriptor().FullName())
	}
	if e.Schema == 0 {
		e.Schema = 1
	}
	if e.ID == "" {
		return nil, nil, fmt.Errorf("event %s has no id", e.Type)
	}
	h := headers{h: make(nats.Header, maxHeaders)}
	h.set(HeaderID, e.ID)
	h.set(HeaderType, e.Type)
	h.set(HeaderSchema, strconv.Itoa(e.Schema))
	h.set(HeaderTime, e.Time.UTC().Format(time.RFC3339Nano))
	h.set(HeaderTenant, e.Tenant)
	h.set(HeaderActor, e.Actor)
	h.set(HeaderCause, e.Cause)
	h.set(HeaderCorrelation, e.Correlation)
	h.set(HeaderTraceparent, e.Traceparent)
	h.set(HeaderTracestate, e.Tracestate)
	d := Digest(previous, h.h, data)
	h.set(HeaderDigest, hex.EncodeToString(d))
	m := &nats.Msg{Subject: subject, Header: h.h, Data: data}
	return m, d, nil
}

// maxHeaders is how many headers an event has, with the two that an append adds.
const maxHeaders = 13

// headers are set once each. Their values lie in one array, which saves an allocation for each.
type headers struct {
	h      nats.Header
	n      int
	values [maxHeaders]string
}

// set leaves out an empty value.
func (h *headers) set(k, v string) {
	if v == "" {
		return
	}
	h.values[h.n] = v
	h.h[k] = h.values[h.n : h.n+1 : h.n+1]
	h.n++
}

// Stored is what Decode would give for the message that Encode made of e, once it stands at seq, for less. Body is that of e.
func Stored(m *nats.Msg, seq uint64, e Event) (Recorded, error) {
	r := Recorded{Meta: e.Meta, Subject: m.Subject, Seq: seq, Data: m.Data, Body: e.Body}
	r.Type, r.Time = m.Header.Get(HeaderType), e.Time.UTC().Round(0)
	r.Tenant = m.Header.Get(HeaderTenant)
	r.Traceparent, r.Tracestate = m.Header.Get(HeaderTraceparent), m.Header.Get(HeaderTracestate)
	var err error
	if e.Time.IsZero() {
		r.Time, err = time.Parse(time.RFC3339Nano, m.Header.Get(HeaderTime))
	}
	if r.Schema == 0 {
		r.Schema = 1
	}
	if err == nil {
		r.Digest, err = hex.DecodeString(m.Header.Get(HeaderDigest))
	}
	if err != nil {
		return r, fmt.Errorf("event %d: %w", seq, err)
	}
	return r, nil
}

// Decode reads a stored event. An unknown type is no error: Body is nil then and the caller decides. Data that does not decode
// as its own type is one.
func Decode(subject string, seq uint64, h nats.Header, data []byte) (Recorded, error) {
	return DecodeHead(subject, seq, HeadOf(h), data)
}

// DecodeHead is Decode where the headers have been read already.
func DecodeHead(subject string, seq uint64, h Head, data []byte) (Recorded, error) {
	r := Recorded{Subject: subject, Seq: seq, Data: data}
	r.ID, r.Type = h.ID, h.Type
	r.Tenant, r.Actor = h.Tenant, h.Actor
	r.Cause, r.Correlation = h.Cause, h.Correlation
	r.Traceparent, r.Tracestate = h.Traceparent, h.Tracestate
	if r.ID == "" || r.Type == "" {
		return r, fmt.Errorf("message %d on %s is not an event: no id or type", seq, subject)
	}
	var err error
	if r.Schema, err = strconv.Atoi(h.Schema); err != nil {
		return r, fmt.Errorf("event %d: schema: %w", seq, err)
	}
	if r.Time, err = time.Parse(time.RFC3339Nano, h.Time); err != nil {
		return r, fmt.Errorf("event %d: time: %w", seq, err)
	}
	if r.Digest, err = hex.DecodeString(h.Digest); err != nil {
		return r, fmt.Errorf("event %d: digest: %w", seq, err)
	}
	mt, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName(r.Type))
	if err != nil {
		return r, nil //nolint:nilerr // an unknown type is for the caller to judge
	}
	body := mt.New().Interface()
	if err := proto.Unmarshal(data, body); err != nil {
		return r, fmt.Errorf("event %d of type %s: %w", seq, r.Type, err)
	}
	r.Body = body
	return r, nil
}
