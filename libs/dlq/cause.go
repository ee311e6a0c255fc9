package dlq

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/fault"
)

// Why a message is dead.
const (
	// ReasonPoison: no retry can help.
	ReasonPoison = "poison"
	// ReasonAttempts: it failed as often as it may.
	ReasonAttempts = "attempts"
	// ReasonPanic: its handler panicked MaxPanics times.
	ReasonPanic = "panic"
)

// MaxPanics is with how many panics of its handler a message is dead.
const MaxPanics = 3

// What is wrong with poison. Callers never meet these reasons: they are about messages between services.
const (
	CauseUndecodable  fault.Reason = "undecodable"
	CauseMisaddressed fault.Reason = "misaddressed"
	CauseUnknownKind  fault.Reason = "unknown_kind"
	CausePanic        fault.Reason = "panic"
)

// Undecodable says that a message is not the thing it should be, such as "a SandboxCommand".
func Undecodable(thing string, err error) error {
	return fault.Newf(fault.InvalidArgument, CauseUndecodable, "the message is not %s", thing).Because(err)
}

// Misaddressed says that a message's body and its subject do not belong together.
func Misaddressed() error {
	return fault.New(fault.InvalidArgument, CauseMisaddressed, "the message is for something else than its subject names, or has no id")
}

// UnknownKind says that this version does not know what the message asks for; a newer one may.
func UnknownKind() error {
	return fault.New(fault.FailedPrecondition, CauseUnknownKind, "this version does not know what the message asks for; run a newer one and redrive")
}

// PanicError is the error of a handler that panicked.
type PanicError struct {
	// kind is the type of what it panicked with. Its text may hold anything, but for those of the Go runtime.
	kind, text, site string
}

// Caught is what a deferred function recovered. It must be called from there: the stack tells where the panic was.
func Caught(p any) *PanicError {
	c := &PanicError{kind: fmt.Sprintf("%T", p), site: panicked()}
	if e, ok := p.(runtime.Error); ok {
		c.text = e.Error()
	}
	return c
}

func (p *PanicError) Error() string {
	what := "handler panicked with a " + p.kind
	if p.text != "" {
		what = "handler panicked: " + p.text
	}
	if p.site != "" {
		what += " at " + p.site
	}
	return what
}

// panicked is the function, file and line behind the panic that is being recovered.
func panicked() string {
	pc := make([]uintptr, 64)
	frames := runtime.CallersFrames(pc[:runtime.Callers(2, pc)])
	for began := false; ; {
		f, more := frames.Next()
		if began && !strings.HasPrefix(f.Function, "runtime.") {
			return fmt.Sprintf("%s (%s:%d)", path.Base(f.Function), path.Base(f.File), f.Line)
		}
		began = began || f.Function == "runtime.gopanic"
		if !more {
			return ""
		}
	}
}

// Explain says of a failure what an operator may see: code, reason and a sentence. The text of an error is in the sentence only
// where it cannot quote the message.
func Explain(err error) (code fault.Code, reason fault.Reason, sentence string) {
	var (
		f *fault.Error
		p *PanicError
	)
	switch {
	case errors.As(err, &p):
		return fault.Internal, CausePanic, bounded(p.Error())
	case errors.As(err, &f):
		sentence = f.Message
		if why := safe(f.Unwrap()); why != "" {
			sentence += ": " + why
		}
		return f.Code, f.Reason, bounded(sentence)
	}
	if sentence = safe(err); sentence == "" {
		sentence = fmt.Sprintf("an error of type %T; the log of the service has its text", leaf(err))
	}
	return fault.Internal, fault.ReasonInternal, bounded(sentence)
}

// maxSentence bounds what is said of a failure, in bytes, so that a letter fits beside a message of any size.
const maxSentence = 1 << 10

func bounded(s string) string {
	if s = oneLine(s); len(s) > maxSentence {
		s = s[:maxSentence]
	}
	return strings.ToValidUTF8(s, "")
}

func leaf(err error) error {
	for next := err; next != nil; next = errors.Unwrap(err) {
		err = next
	}
	return err
}

// sentinels are errors whose text is fixed.
var sentinels = []error{
	context.DeadlineExceeded, context.Canceled, nats.ErrTimeout, nats.ErrNoResponders, nats.ErrConnectionClosed, nats.ErrMaxPayload,
	jetstream.ErrNoStreamResponse, jetstream.ErrKeyNotFound, jetstream.ErrMsgNotFound, jetstream.ErrStreamNotFound,
}

// safe is what may be said of an error that was not made to be shown; empty where nothing can.
func safe(err error) string {
	var (
		api    *jetstream.APIError
		chain  *eventlog.ChainError
		errno  syscall.Errno
		op     *net.OpError
		number *strconv.NumError
		moment *time.ParseError
		text   *json.SyntaxError
		digit  hex.InvalidByteError
	)
	switch {
	case err == nil:
		return ""
	case errors.As(err, &api):
		return fmt.Sprintf("JetStream error %d (%s)", api.ErrorCode, api.Description)
	case errors.As(err, &chain):
		return chain.Error()
	case errors.Is(err, proto.Error):
		return "its bytes are no protobuf of that type"
	case errors.As(err, &number):
		return number.Func + ": " + number.Err.Error()
	case errors.As(err, &moment):
		return "a time does not parse"
	case errors.As(err, &text):
		return fmt.Sprintf("JSON does not parse at byte %d", text.Offset)
	case errors.As(err, &digit), errors.Is(err, hex.ErrLength):
		return "hexadecimal digits do not parse"
	case errors.As(err, &op):
		return strings.TrimSpace(op.Op + " " + op.Net + ": " + errnoText(op.Err))
	case errors.As(err, &errno):
		return errno.Error()
	}
	if i := slices.IndexFunc(sentinels, func(s error) bool { return errors.Is(err, s) }); i >= 0 {
		return sentinels[i].Error()
	}
	return ""
}

func errnoText(err error) string {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno.Error()
	}
	return "failed"
}

// tooLargeToStore is JetStream's error code for a message over the size that its stream takes.
const tooLargeToStore jetstream.ErrorCode = 10054

// Hopeless reports whether the same work on the same message must fail again: what is known to be so. Everything else, above all
// a log or a bucket that does not answer or is full, may pass.
func Hopeless(err error) bool {
	var (
		f   *fault.Error
		api *jetstream.APIError
	)
	if errors.As(err, &f) {
		switch f.Code {
		case fault.InvalidArgument, fault.FailedPrecondition, fault.NotFound, fault.PermissionDenied, fault.Internal:
			return true
		case fault.ResourceExhausted:
			return f.Reason == fault.ReasonTooLarge
		case fault.Conflict, fault.Unauthorized, fault.Cancelled, fault.DeadlineExceeded, fault.Unavailable, fault.Lost:
			return false
		}
	}
	if errors.As(err, &api) {
		return api.ErrorCode == tooLargeToStore
	}
	return errors.Is(err, nats.ErrMaxPayload)
}
