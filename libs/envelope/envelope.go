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
}

// Digest chains one event to the one before it: sha256(previous, each chained header's value and data behind its length).
// previous is nil for the first event of an aggregate.
func Digest(previous []byte, h nats.Header, data []byte) []byte {
	s := sha256.New()
	s.Write(previous)
	put := func(b []byte) {
		fmt.Fprintf(s, "%d:", len(b))
		s.Write(b)
	}
	for _, k := range chained {
		put([]byte(h.Get(k)))
	}
	put(data)
	return s.Sum(nil)
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
	m := nats.NewMsg(subject)
	m.Data = data
	m.Header.Set(HeaderID, e.ID)
	m.Header.Set(HeaderType, e.Type)
	m.Header.Set(HeaderSchema, strconv.Itoa(e.Schema))
	m.Header.Set(HeaderTime, e.Time.UTC().Format(time.RFC3339Nano))
	for k, v := range map[string]string{
		HeaderTenant: e.Tenant, HeaderActor: e.Actor, HeaderCause: e.Cause, HeaderCorrelation: e.Correlation,
		HeaderTraceparent: e.Traceparent, HeaderTracestate: e.Tracestate,
	} {
		if v != "" {
			m.Header.Set(k, v)
		}
	}
	d := Digest(previous, m.Header, data)
	m.Header.Set(HeaderDigest, hex.EncodeToString(d))
	return m, d, nil
}

// Decode reads a stored event. An unknown type is no error: Body is nil then and the caller decides. Data that does not decode
// as its own type is one.
func Decode(subject string, seq uint64, h nats.Header, data []byte) (Recorded, error) {
	r := Recorded{Subject: subject, Seq: seq, Data: data}
	r.ID, r.Type = h.Get(HeaderID), h.Get(HeaderType)
	r.Tenant, r.Actor = h.Get(HeaderTenant), h.Get(HeaderActor)
	r.Cause, r.Correlation = h.Get(HeaderCause), h.Get(HeaderCorrelation)
	r.Traceparent, r.Tracestate = h.Get(HeaderTraceparent), h.Get(HeaderTracestate)
	if r.ID == "" || r.Type == "" {
		return r, fmt.Errorf("message %d on %s is not an event: no id or type", seq, subject)
	}
	var err error
	if r.Schema, err = strconv.Atoi(h.Get(HeaderSchema)); err != nil {
		return r, fmt.Errorf("event %d: schema: %w", seq, err)
	}
	if r.Time, err = time.Parse(time.RFC3339Nano, h.Get(HeaderTime)); err != nil {
		return r, fmt.Errorf("event %d: time: %w", seq, err)
	}
	if r.Digest, err = hex.DecodeString(h.Get(HeaderDigest)); err != nil {
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
