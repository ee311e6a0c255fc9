package feed

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Holds reports whether a stream still has the message that stood at a sequence when somebody read it, by the time at which the
// stream had taken it; the zero time is one that is not known. A server that lost power comes back with a shorter stream and gives
// the same sequences again, to other messages: whoever went on there would miss them. A message that was removed since counts as
// held. What the stream's cached information says of its end must be fresh.
func Holds(ctx context.Context, s jetstream.Stream, seq uint64, stored time.Time) (bool, error) {
	if seq > s.CachedInfo().State.LastSeq {
		return false, nil
	}
	if seq == 0 || stored.IsZero() {
		return true, nil
	}
	m, err := s.GetMsg(ctx, seq)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("look at message %d: %w", seq, err)
	}
	return m.Time.Equal(stored), nil
}
