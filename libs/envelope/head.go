package envelope

import (
	"strings"

	"github.com/nats-io/nats.go"
)

// Head is what the headers of a message say about an event, as it stands there; empty where they say nothing.
type Head struct {
	ID, Type, Schema, Tenant, Actor, Cause, Correlation, Time, Digest, Traceparent, Tracestate string
}

// HeadOf is the head of headers that the client has read.
func HeadOf(h nats.Header) Head {
	return Head{
		ID: h.Get(HeaderID), Type: h.Get(HeaderType), Schema: h.Get(HeaderSchema), Tenant: h.Get(HeaderTenant), Actor: h.Get(HeaderActor),
		Cause: h.Get(HeaderCause), Correlation: h.Get(HeaderCorrelation), Time: h.Get(HeaderTime), Digest: h.Get(HeaderDigest),
		Traceparent: h.Get(HeaderTraceparent), Tracestate: h.Get(HeaderTracestate),
	}
}

// ReadHead is the head of a block of headers as the server sends it, "NATS/1.0" and its end included. It is what HeadOf gives of
// the headers that the client would make of the block, and of nothing where the block is none.
func ReadHead(block string) Head {
	var h Head
	first, rest, ok := line(block)
	status, versioned := strings.CutPrefix(first, "NATS/1.0")
	if !ok || !versioned || (status != "" && len(strings.TrimSpace(status)) < len("100")) {
		return Head{}
	}
	for seen := fields(0); ; {
		l, more, ok := line(rest)
		if !ok {
			return Head{}
		}
		if rest = more; l == "" {
			return h
		}
		name, value, ok := strings.Cut(l, ":")
		if !ok {
			return Head{}
		}
		// The first of several counts, as with the client.
		if to, bit := h.field(name); to != nil && seen&bit == 0 {
			*to = strings.TrimLeft(value, " \t")
			seen |= bit
		}
	}
}

// line cuts one line off; false where no end of a line comes.
func line(s string) (l, rest string, ok bool) {
	l, rest, ok = strings.Cut(s, "\n")
	return strings.TrimSuffix(l, "\r"), rest, ok
}

// fields is a set of fields of a head, one bit each.
type fields uint16

// field is the field of a header and its bit; nil for another header.
func (h *Head) field(name string) (*string, fields) {
	switch name {
	case HeaderID:
		return &h.ID, 1 << 0
	case HeaderType:
		return &h.Type, 1 << 1
	case HeaderSchema:
		return &h.Schema, 1 << 2
	case HeaderTenant:
		return &h.Tenant, 1 << 3
	case HeaderActor:
		return &h.Actor, 1 << 4
	case HeaderCause:
		return &h.Cause, 1 << 5
	case HeaderCorrelation:
		return &h.Correlation, 1 << 6
	case HeaderTime:
		return &h.Time, 1 << 7
	case HeaderDigest:
		return &h.Digest, 1 << 8
	case HeaderTraceparent:
		return &h.Traceparent, 1 << 9
	case HeaderTracestate:
		return &h.Tracestate, 1 << 10
	}
	return nil, 0
}
