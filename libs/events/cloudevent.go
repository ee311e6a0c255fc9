package events

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/subject"
)

const (
	cloudEventsVersion = "1.0"
	// ContentType is that of an event in CloudEvents' structured JSON form.
	ContentType = "application/cloudevents+json"

	contentJSON     = "application/json"
	contentProtobuf = "application/protobuf"
)

// CloudEvent is an event as CloudEvents 1.0 describes it, in its JSON form. What the specification does not name are extensions. The
// same event gives the same bytes.
type CloudEvent struct {
	SpecVersion string `json:"specversion"`
	// ID is the event's own: the same whenever and to whomever it is given, so that repetitions show.
	ID string `json:"id"`
	// Source is /sandtrail/<tenant>. Source and ID together are unique.
	Source string `json:"source"`
	// Type is the body's full name, e.g. sandtrail.events.v1.SandboxReady.
	Type string `json:"type"`
	// Subject is the aggregate: sandbox/<id>, exec/<sandbox>/<exec>, workspace/<id>, tenant, …
	Subject string    `json:"subject"`
	Time    time.Time `json:"time"`
	// DataContentType is application/json, with Data; or application/protobuf, with DataBase64, of a type that this program does not know.
	DataContentType string          `json:"datacontenttype"`
	Data            json.RawMessage `json:"data,omitempty"`
	DataBase64      []byte          `json:"data_base64,omitempty"`

	// Sequence is the event's place in the log, in decimal. Of two events of one aggregate the later one has the higher.
	Sequence    string `json:"sequence"`
	Tenant      string `json:"tenantid"`
	Schema      int    `json:"schemaversion"`
	Actor       string `json:"actor,omitempty"`
	Cause       string `json:"causationid,omitempty"`
	Correlation string `json:"correlationid,omitempty"`
	// Digest chains the aggregate's events, in hex.
	Digest      string `json:"digest"`
	Traceparent string `json:"traceparent,omitempty"`
	Tracestate  string `json:"tracestate,omitempty"`
}

// CloudEventOf is the view of a recorded event. An error: its body cannot be written as JSON, which no event of ours has.
func CloudEventOf(e envelope.Recorded) (CloudEvent, error) {
	tenant, rest, _ := strings.Cut(strings.TrimPrefix(e.Subject, subject.EventPrefix), ".")
	c := CloudEvent{
		SpecVersion: cloudEventsVersion, ID: text(e.ID), Source: "/sandtrail/" + text(tenant), Type: text(e.Type),
		Subject: text(strings.ReplaceAll(rest, ".", "/")), Time: e.Time.UTC(), DataContentType: contentProtobuf,
		Sequence: strconv.FormatUint(e.Seq, 10), Tenant: text(tenant), Schema: e.Schema, Actor: text(e.Actor), Cause: text(e.Cause),
		Correlation: text(e.Correlation), Digest: hex.EncodeToString(e.Digest), Traceparent: text(e.Traceparent), Tracestate: text(e.Tracestate),
	}
	if e.Body == nil {
		c.DataBase64 = e.Data
		return c, nil
	}
	data, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(e.Body)
	if err != nil {
		return c, fmt.Errorf("event %d as JSON: %w", e.Seq, err)
	}
	// protojson varies its spaces on purpose; readers compare and sign bytes.
	var b bytes.Buffer
	if err := json.Compact(&b, data); err != nil {
		return c, fmt.Errorf("event %d as JSON: %w", e.Seq, err)
	}
	c.Data, c.DataContentType = b.Bytes(), contentJSON
	return c, nil
}

// text is what a header says as JSON can hold it: what was not written by us may hold anything.
func text(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
