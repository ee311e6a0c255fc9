package client

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sandtrail/sandtrail/libs/fault"
	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
)

const (
	firstPause = 40 * time.Millisecond
	maxPause   = 2 * time.Second
)

// Retry calls until it succeeds, fails for good, or the server was out of reach for the client's patience. Only for calls that
// may be repeated.
func Retry[T any](ctx context.Context, c *Client, call func(context.Context) (T, error)) (T, error) {
	p := c.patience(c.options.Patience)
	for {
		res, err := call(ctx)
		if err == nil || !temporary(err) || !p.wait(ctx, err) {
			return res, err
		}
	}
}

// patience waits between attempts, longer each time, until there was no progress for its limit.
type patience struct {
	limit time.Duration
	since time.Time
	pause time.Duration
}

func (c *Client) patience(limit time.Duration) *patience {
	return &patience{limit: limit, since: time.Now(), pause: firstPause}
}

// progress starts the limit anew.
func (p *patience) progress() { p.since, p.pause = time.Now(), firstPause }

// wait pauses before the next attempt, at least as long as the server asked for; false when there is no time for one.
func (p *patience) wait(ctx context.Context, err error) bool {
	d := p.pause/2 + rand.N(p.pause/2+1)
	p.pause = min(2*p.pause, maxPause)
	if f := fault.FromStatus(err); f != nil {
		d = max(d, min(f.RetryAfter, p.limit/2))
	}
	if time.Since(p.since)+d > p.limit {
		return false
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// temporary: the call may succeed when it is repeated.
func temporary(err error) bool { return status.Code(err) == codes.Unavailable }

// cut: the stream ended without its end. What a server says itself carries ErrorDetail; anything else comes from something
// between it and us.
func cut(err error) bool {
	if errors.Is(err, io.EOF) || errors.Is(err, errMissing) {
		return true
	}
	st, ok := status.FromError(err)
	if !ok {
		return false
	}
	switch st.Code() {
	case codes.Unavailable, codes.Canceled:
		return true
	case codes.Internal, codes.Unknown, codes.DeadlineExceeded, codes.ResourceExhausted:
		return detail(err) == nil
	default:
		return false
	}
}

// Reason is the reason that a call failed with; empty for none.
func Reason(err error) fault.Reason {
	if f := fault.FromStatus(err); f != nil {
		return f.Reason
	}
	return ""
}

// Lost: the server says that the exec's outcome cannot be known.
func Lost(err error) bool {
	f := fault.FromStatus(err)
	return f != nil && f.Code == fault.Lost
}

func detail(err error) *commonv1.ErrorDetail {
	st, ok := status.FromError(err)
	if !ok {
		return nil
	}
	for _, d := range st.Details() {
		if d, ok := d.(*commonv1.ErrorDetail); ok {
			return d
		}
	}
	return nil
}

// Correlation is the id under which the server logged the call that failed; empty where it did not answer.
func Correlation(err error) string { return detail(err).GetCorrelationId() }
