package cli_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/cli"
)

// watched is a server with one watcher, which tells what a test says, an answer a call: away is that of a server
// that is away for a moment, over that of a watcher that has ended. Behind the
// last one it interrupts who asks.
type watched struct {
	mu      sync.Mutex
	answers []string
	calls   []string
	signals chan os.Signal
}

func (s *watched) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	body, _ := io.ReadAll(r.Body)
	s.calls = append(s.calls, fmt.Sprint(r.Method, " ", r.URL.RequestURI(), " ", string(body)))
	switch {
	case r.Method == http.MethodPost && r.URL.Path == "/api/v1/sandboxes/box/toolbox/watch/create":
		_, _ = io.WriteString(w, `{"watcher_id":"w1"}`)
	case r.Method == http.MethodPost:
		_, _ = io.WriteString(w, `{"success":true}`)
	case len(s.answers) == 0:
		s.signals <- os.Interrupt
		s.mu.Unlock()
		<-r.Context().Done()
		s.mu.Lock()
	default:
		answer := s.answers[0]
		s.answers = s.answers[1:]
		switch answer {
		case "away":
			w.WriteHeader(http.StatusServiceUnavailable)
			answer = `{"message":"m","error":{"code":"unavailable","reason":"log_unavailable","message":"m"}}`
		case "over":
			w.WriteHeader(http.StatusNotFound)
			answer = `{"message":"m","error":{"code":"not_found","reason":"exec_not_found","message":"the watcher has ended"}}`
		}
		_, _ = io.WriteString(w, answer)
	}
}

func watchWith(t *testing.T, answers []string, args ...string) (result, []string) {
	t.Helper()
	s := &watched{answers: answers, signals: make(chan os.Signal, 8)}
	server := httptest.NewServer(s)
	defer server.Close()
	r := runCLI(nil, s.signals, append([]string{"fs", "watch", "box", "src", "--api-url", server.URL}, args...)...)
	s.mu.Lock()
	defer s.mu.Unlock()
	return r, s.calls
}

const someChanges = `{"events":[{"name":"a","type":"create"},{"name":"b\u001b[31m","type":"rename"}],"next":70}`

func TestWatchFollowsUntilItIsInterrupted(t *testing.T) {
	r, calls := watchWith(t, []string{`{"events":[],"next":33}`, "away", someChanges}, "--recursive", "--output", "json")
	require.Equal(t, cli.ExitCancelled, r.code, r.stderr)
	require.Equal(t, []string{`{"name":"a","type":"create"}`, `{"name":"b\u001b[31m","type":"rename"}`, ""}, strings.Split(r.stdout, "\n"))
	events := "GET /api/v1/sandboxes/box/toolbox/watch/events?after=%d&id=w1&wait=20 "
	require.Equal(t, []string{
		`POST /api/v1/sandboxes/box/toolbox/watch/create {"path":"src","recursive":true}`,
		fmt.Sprintf(events, 0), fmt.Sprintf(events, 33), fmt.Sprintf(events, 33), fmt.Sprintf(events, 70),
		`POST /api/v1/sandboxes/box/toolbox/watch/remove {"id":"w1"}`,
	}, calls)
}

func TestWatchEndsWithItsWatcher(t *testing.T) {
	r, _ := watchWith(t, []string{someChanges, "over"})
	require.Equal(t, cli.ExitNotFound, r.code)
	require.Contains(t, r.stdout, "create   a\n")
	require.NotContains(t, r.stdout, "\x1b", "a name is nothing that a terminal obeys")
	require.Contains(t, r.stderr, "the watcher has ended")
}
