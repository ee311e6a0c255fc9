package repeat

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/sandtrail/sandtrail/libs/pause"
)

const (
	// attemptTime bounds one attempt, patience all of a request.
	attemptTime, patience = time.Minute, 3 * time.Minute
	// maxAnswer is more than any answer here has, in bytes.
	maxAnswer = 4 << 20
)

// operation is what one key asks for, always in the same words.
type operation struct {
	kind, method, path, body, key string
	// box is where a command runs.
	box string
}

// answer is what came of a request in the end, and after how many attempts. A status of 0: nothing did.
type answer struct {
	status   int
	body     string
	attempts int
}

func (a answer) String() string { return fmt.Sprintf("%d %.500s", a.status, a.body) }

func (a answer) member(name string) (string, bool) {
	var all map[string]any
	if json.Unmarshal([]byte(a.body), &all) != nil {
		return "", false
	}
	s, ok := all[name].(string)
	return s, ok
}

// client is one program that calls the API as a careful one does: what may succeed later it repeats with the same key.
type client struct {
	http *http.Client
	base string
	key  string
}

func (r *run) client() *client {
	return &client{&http.Client{Timeout: attemptTime, Transport: &http.Transport{MaxIdleConnsPerHost: 1}}, "http://" + r.rig.HTTP + "/api/v1/sandbox", r.key}
}

// until repeats a request until it has an answer that repeating cannot change.
func (c *client) until(ctx context.Context, op *operation) (a answer) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for between := 20 * time.Millisecond; ; between = min(2*between, 500*time.Millisecond) {
		a.attempts++
		status, body, err := c.once(ctx, op)
		if err == nil && !again(status) {
			a.status, a.body = status, body
			return a
		}
		a.body = fmt.Sprintf("%d %.200s %v", status, body, err)
		if pause.For(ctx, between) != nil {
			return a
		}
	}
}

// again: the same request may succeed later.
func again(status int) bool {
	return status == http.StatusServiceUnavailable || status == http.StatusGatewayTimeout || status == http.StatusTooManyRequests
}

func (c *client) once(ctx context.Context, op *operation) (status int, body string, err error) {
	req, err := http.NewRequestWithContext(ctx, op.method, c.base+op.path, strings.NewReader(op.body))
	if err != nil {
		return 0, "", err
	}
	req.Header.Set("Authorization", "ApiKey "+c.key)
	if op.key != "" {
		req.Header.Set("Idempotency-Key", op.key)
	}
	if op.body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := c.http.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	data, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	return res.StatusCode, string(data), err
}
