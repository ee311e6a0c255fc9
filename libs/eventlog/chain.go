package eventlog

import (
	"bytes"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/fault"
)

// ChainError says that a history is not what was appended: an event was altered, lost or put in.
type ChainError struct {
	Subject string
	// Seq of the first event that does not follow from those before it.
	Seq uint64
}

func (e *ChainError) Error() string {
	return fmt.Sprintf("digest of event %d on %s does not follow from the events before it", e.Seq, e.Subject)
}

// Verify checks the digest chain of a whole history. The fault it gives has a *ChainError in its chain.
func Verify(h History) error {
	var previous []byte
	for _, e := range h.Events {
		if !bytes.Equal(digestOf(previous, e), e.Digest) {
			return fault.New(fault.Internal, fault.ReasonInternal, "a history in the event log is damaged").
				Because(&ChainError{Subject: e.Subject, Seq: e.Seq})
		}
		previous = e.Digest
	}
	return nil
}

func digestOf(previous []byte, e envelope.Recorded) []byte {
	h := nats.Header{}
	for k, v := range map[string]string{
		envelope.HeaderID: e.ID, envelope.HeaderType: e.Type, envelope.HeaderSchema: strconv.Itoa(e.Schema),
		envelope.HeaderTenant: e.Tenant, envelope.HeaderActor: e.Actor, envelope.HeaderCause: e.Cause,
		envelope.HeaderCorrelation: e.Correlation, envelope.HeaderTime: e.Time.Format(time.RFC3339Nano),
	} {
		h.Set(k, v)
	}
	return envelope.Digest(previous, h, e.Data)
}
