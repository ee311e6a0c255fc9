package app_test

import (
	"errors"
	"io"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/subject"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
)

// What cannot be decoded is shown as it stands, and what is behind it comes.
func TestEventsThatCannotBeReadEndNoStreamOfEvents(t *testing.T) {
	w := newWorld(t, map[string]string{"alice": "acme"})
	first := w.create(w.as("alice"))
	var bad []uint64
	for _, m := range []*nats.Msg{
		{Header: nil},
		{Header: nats.Header{envelope.HeaderType: {"sandtrail.events.v1.SandboxReady"}, envelope.HeaderID: {"x"}, envelope.HeaderSchema: {"one"}}},
		{Header: nats.Header{envelope.HeaderType: {"sandtrail.events.v1.SandboxReady\xff"}, envelope.HeaderID: {"\xff\xfe"}, envelope.HeaderTenant: {"\xff"}}},
		{
			Header: nats.Header{
				envelope.HeaderType: {"sandtrail.events.v1.SandboxReady"}, envelope.HeaderID: {"y"}, envelope.HeaderSchema: {"1"},
				envelope.HeaderTime: {"2026-01-01T00:00:00Z"}, envelope.HeaderDigest: {"00"},
			},
			Data: []byte{0x0a, 0xff},
		},
		// Well-formed and of a newer program.
		{Header: nats.Header{
			envelope.HeaderType: {"sandtrail.events.v9.Imagined"}, envelope.HeaderID: {"z"}, envelope.HeaderSchema: {"1"},
			envelope.HeaderTime: {"2026-01-01T00:00:00Z"},
		}},
	} {
		m.Subject = subject.Sandbox("acme", ids.New()).Subject()
		ack, err := w.JS.PublishMsg(t.Context(), m)
		require.NoError(t, err)
		bad = append(bad, ack.Sequence)
	}
	second := w.create(w.as("alice"))

	s, err := w.WatchEvents(w.as("alice"), &computev1.WatchEventsRequest{NoFollow: true})
	require.NoError(t, err)
	var shown []uint64
	boxes := map[string]bool{}
	for {
		e, err := s.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		if e.GetBodyJson() == "" {
			shown = append(shown, e.GetSequence())
		} else {
			boxes[e.GetSandboxId()] = true
		}
	}
	require.Equal(t, bad, shown)
	require.Equal(t, map[string]bool{first: true, second: true}, boxes)
}
