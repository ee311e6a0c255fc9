package dlq_test

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/dlq"
	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/fault"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

// secret stands in whatever a message may hold.
const secret = "hunter2"

func caught(f func()) (err error) {
	defer func() { err = dlq.Caught(recover()) }()
	f()
	return nil
}

func TestWhatAnOperatorIsTold(t *testing.T) {
	var none []int
	_, number := strconv.Atoi(secret)
	_, moment := time.Parse(time.RFC3339, secret)
	_, digits := hex.DecodeString(secret + "x")
	for name, c := range map[string]struct {
		err    error
		reason fault.Reason
		says   string
	}{
		"protobuf": {dlq.Undecodable("a SandboxCommand", proto.Unmarshal([]byte(secret), &eventsv1.Letter{})), dlq.CauseUndecodable, "the message is not a SandboxCommand: its bytes are no protobuf of that type"},
		"index": {
			caught(func() { _ = none[len(secret)] }), dlq.CausePanic,
			"handler panicked: runtime error: index out of range [7] with length 0 at dlq_test.TestWhatAnOperatorIsTold.func",
		},
		"nil":           {caught(func() { _ = *(*int)(nil) }), dlq.CausePanic, "nil pointer dereference at dlq_test.TestWhatAnOperatorIsTold.func"},
		"own panic":     {caught(func() { panic(secret) }), dlq.CausePanic, "handler panicked with a string at dlq_test.TestWhatAnOperatorIsTold.func"},
		"own error":     {caught(func() { panic(errors.New(secret)) }), dlq.CausePanic, "handler panicked with a *errors.errorString at "},
		"unknown":       {fmt.Errorf("about %s: %w", secret, errors.New(secret)), fault.ReasonInternal, "an error of type *errors.errorString; the log of the service has its text"},
		"wrapped fault": {fmt.Errorf("%s: %w", secret, fault.New(fault.NotFound, fault.ReasonSandboxNotFound, "there is none").Because(syscall.ENOSPC)), fault.ReasonSandboxNotFound, "there is none: no space left on device"},
		"number":        {number, fault.ReasonInternal, "Atoi: invalid syntax"},
		"time":          {moment, fault.ReasonInternal, "a time does not parse"},
		"hex":           {digits, fault.ReasonInternal, "hexadecimal digits do not parse"},
		"json":          {json.Unmarshal([]byte(`{"`+secret), &none), fault.ReasonInternal, "JSON does not parse at byte 9"},
		"dial":          {&net.OpError{Op: "dial", Net: "unix", Addr: &net.UnixAddr{Name: secret}, Err: syscall.ENOENT}, fault.ReasonInternal, "dial unix: no such file or directory"},
		"deadline":      {fmt.Errorf("%s: %w", secret, context.DeadlineExceeded), fault.ReasonInternal, "context deadline exceeded"},
		"server":        {&jetstream.APIError{ErrorCode: 10071, Description: "wrong last sequence: 3"}, fault.ReasonInternal, "JetStream error 10071 (wrong last sequence: 3)"},
		"chain":         {eventlog.Verify(damaged()), fault.ReasonInternal, "a history in the event log is damaged: digest of event 1 on evt.acme.sandbox.s1 does not follow from the events before it"},
	} {
		code, reason, says := dlq.Explain(c.err)
		require.NotEmpty(t, code, name)
		require.Equal(t, c.reason, reason, name)
		require.Contains(t, says, c.says, name)
		require.NotContains(t, says, secret, name)
	}
	_, _, says := dlq.Explain(fault.New(fault.Internal, "x", strings.Repeat("é\n", 5000)))
	require.LessOrEqual(t, len(says), 1024)
	require.True(t, utf8.ValidString(says))
	require.NotContains(t, says, "\n")
}

func damaged() eventlog.History {
	return eventlog.History{Events: []envelope.Recorded{{Subject: "evt.acme.sandbox.s1", Seq: 1, Digest: []byte("another")}}}
}

func TestWhatMayPassIsTriedAgain(t *testing.T) {
	for _, err := range []error{
		errors.New("anything"), context.DeadlineExceeded, nats.ErrTimeout, nats.ErrConnectionClosed, syscall.ENOSPC,
		fault.New(fault.Unavailable, fault.ReasonLogUnavailable, ""), fault.New(fault.Conflict, fault.ReasonConflict, ""),
		fault.New(fault.ResourceExhausted, fault.ReasonLogFull, ""), fault.New(fault.DeadlineExceeded, fault.ReasonTimeout, ""),
		&jetstream.APIError{ErrorCode: 10077, Description: "maximum bytes exceeded"}, &jetstream.APIError{ErrorCode: 10008, Description: "JetStream system temporarily unavailable"},
	} {
		require.False(t, dlq.Hopeless(err), "%v", err)
		require.False(t, dlq.Hopeless(fmt.Errorf("store: %w", err)), "%v", err)
	}
	for _, err := range []error{
		dlq.Undecodable("an event", errors.New("x")), dlq.Misaddressed(), dlq.UnknownKind(), fault.New(fault.ResourceExhausted, fault.ReasonTooLarge, ""),
		fault.New(fault.FailedPrecondition, fault.ReasonIllegalState, ""), eventlog.Verify(damaged()), nats.ErrMaxPayload,
		&jetstream.APIError{ErrorCode: 10054, Description: "message size exceeds maximum allowed"},
	} {
		require.True(t, dlq.Hopeless(err), "%v", err)
		require.True(t, dlq.Hopeless(fmt.Errorf("apply: %w", err)), "%v", err)
	}
}
