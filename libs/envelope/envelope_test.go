package envelope_test

import (
	"crypto/sha256"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/envelope"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

// What an append returns without reading is what a load reads.
func TestStoredIsWhatDecodeGives(t *testing.T) {
	for name, meta := range map[string]envelope.Meta{
		"least":   {ID: "e1", Time: time.Now()},
		"no time": {ID: "e1"},
		"full": {
			ID: "e1", Type: "sandtrail.events.v1.ExecCompleted", Schema: 3, Tenant: "acme", Actor: "dev", Cause: "c", Correlation: "o",
			Time: time.Now(), Traceparent: "00-1-2-01", Tracestate: "a=b",
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := envelope.Event{Meta: meta, Body: &eventsv1.ExecCompleted{ExitCode: 3, Reason: "exited"}}
			m, digest, err := envelope.Encode("evt.acme.exec.s.e", e, []byte("previous"))
			require.NoError(t, err)
			want, err := envelope.Decode(m.Subject, 7, m.Header, m.Data)
			require.NoError(t, err)
			got, err := envelope.Stored(m, 7, e)
			require.NoError(t, err)
			require.True(t, proto.Equal(want.Body, got.Body))
			want.Body, got.Body = nil, nil
			require.Equal(t, want, got)
			require.Equal(t, digest, got.Digest)
		})
	}
}

// The digest is a promise to audits: each part behind its length, in this order, and nothing else.
func TestDigestCoversFactsInOrder(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	e := envelope.Event{
		Meta: envelope.Meta{ID: "id", Tenant: "acme", Actor: "dev", Cause: "cause", Correlation: "corr", Time: at, Traceparent: "not covered"},
		Body: &eventsv1.ExecCompleted{ExitCode: 3},
	}
	m, digest, err := envelope.Encode("evt.acme.exec.s.e", e, []byte("previous"))
	require.NoError(t, err)
	text := "previous"
	for _, part := range []string{"id", "sandtrail.events.v1.ExecCompleted", "1", "acme", "dev", "cause", "corr", at.Format(time.RFC3339Nano), string(m.Data)} {
		text += fmt.Sprintf("%d:%s", len(part), part)
	}
	want := sha256.Sum256([]byte(text))
	require.Equal(t, want[:], digest)
	require.Equal(t, fmt.Sprintf("%x", want), m.Header.Get(envelope.HeaderDigest))
}
