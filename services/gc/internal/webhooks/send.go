package webhooks

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/events"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/webhook"
)

const (
	// maxAnswer is how much of an answer is read, in bytes: enough to use the connection again.
	maxAnswer = 4 << 10
	agent     = "sandtrail-webhooks/1"
)

// answer is what came of one attempt.
type answer struct {
	// status is the HTTP status, 0 where none came.
	status int
	took   time.Duration
	// err is why it was not delivered, safe to show; nil: it was.
	err error
	// wait is how long the endpoint asked to be left alone.
	wait time.Duration
}

// gone: the endpoint wants no more, ever.
func (a answer) gone() bool { return a.status == http.StatusGone }

// sender sends signed messages.
type sender struct {
	client *http.Client
	open   func(p webhook.Endpoint, s webhook.Sealed) (webhook.Secret, error)
	now    func() time.Time
}

// send makes one attempt to deliver an event.
func (s *sender) send(ctx context.Context, p webhook.Endpoint, e envelope.Recorded) answer {
	begin := time.Now()
	a := s.attempt(ctx, p, e)
	a.took = time.Since(begin)
	return a
}

func (s *sender) attempt(ctx context.Context, p webhook.Endpoint, e envelope.Recorded) answer {
	c, err := events.CloudEventOf(e)
	if err != nil {
		return answer{err: err}
	}
	body, err := json.Marshal(c)
	if err != nil {
		return answer{err: err}
	}
	at := s.now()
	signature, err := s.sign(p, e.ID, at, body)
	if err != nil {
		return answer{err: err}
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, p.URL, bytes.NewReader(body))
	if err != nil {
		return failed("its URL cannot be called")
	}
	r.Header = http.Header{
		"Content-Type": {events.ContentType}, "User-Agent": {agent}, webhook.HeaderID: {e.ID},
		webhook.HeaderTimestamp: {strconv.FormatInt(at.Unix(), 10)}, webhook.HeaderSignature: {signature},
	}
	res, err := s.client.Do(r)
	if err != nil {
		return failed(why(err))
	}
	defer func() { _ = res.Body.Close() }()
	// However much more there is: the connection is closed on it.
	_, _ = io.CopyN(io.Discard, res.Body, maxAnswer)
	out := answer{status: res.StatusCode, wait: retryAfter(res.Header, at)}
	if res.StatusCode < 200 || res.StatusCode > 299 {
		out.err = undelivered("it answered " + strconv.Itoa(res.StatusCode))
	}
	return out
}

// sign signs with every secret that is good at a time.
func (s *sender) sign(p webhook.Endpoint, id string, at time.Time, body []byte) (string, error) {
	var all []string
	for _, sealed := range p.Secrets {
		if !sealed.Until.IsZero() && !at.Before(sealed.Until) {
			continue
		}
		secret, err := s.open(p, sealed)
		if err != nil {
			return "", undelivered("its secret was sealed with another key; rotate it")
		}
		all = append(all, secret.Sign(id, at, body))
	}
	return strings.Join(all, " "), nil
}

func failed(what string) answer { return answer{err: undelivered(what)} }

func undelivered(what string) error {
	return fault.New(fault.Unavailable, fault.ReasonUndelivered, "the endpoint did not take it: "+what)
}

// why says what went wrong on the way, without what only who runs this may know: addresses that names lead to.
func why(err error) string {
	var (
		dns     *net.DNSError
		timeout net.Error
	)
	switch {
	case errors.Is(err, webhook.ErrPrivate):
		return "its address is not public"
	case errors.Is(err, context.Canceled):
		return "the attempt was broken off"
	case errors.As(err, &dns):
		return "its name cannot be resolved"
	case errors.As(err, &timeout) && timeout.Timeout():
		return "no answer in time"
	case strings.Contains(err.Error(), "tls:") || strings.Contains(err.Error(), "x509:"):
		return "no safe connection: its certificate or its TLS is not good"
	default:
		return "the connection failed"
	}
}

// retryAfter reads the header of that name: seconds, or a time.
func retryAfter(h http.Header, now time.Time) time.Duration {
	text := h.Get("Retry-After")
	if n, err := strconv.Atoi(text); err == nil {
		return time.Duration(min(max(n, 0), 86_400)) * time.Second
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(at.Sub(now), 0)
	}
	return 0
}

// Backoff says how often and when an event is sent again.
type Backoff struct {
	// First is the pause behind the first failure; each one is four times the one before, up to Most, a fifth more or less.
	First, Most time.Duration
	// Attempts is with how many failures an event is set aside.
	Attempts int
}

// DefaultBackoff goes on for about eight hours.
func DefaultBackoff() Backoff {
	return Backoff{First: 5 * time.Second, Most: 2 * time.Hour, Attempts: 10}
}

// pause is that behind the n-th failure, at least as long as the endpoint asked for.
func (b Backoff) pause(n int, asked time.Duration) time.Duration {
	d := b.First
	for range n - 1 {
		if d >= b.Most {
			break
		}
		d *= 4
	}
	d = min(d, b.Most)
	d = d*4/5 + rand.N(d*2/5+1) // spreads load, guards nothing
	return max(d, min(asked, b.Most))
}

func (a answer) String() string {
	if a.err != nil {
		return fmt.Sprintf("%d: %v", a.status, a.err)
	}
	return strconv.Itoa(a.status)
}
