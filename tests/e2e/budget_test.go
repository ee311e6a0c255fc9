package e2e

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/tests/e2e/stack"
)

// operate runs a command of an operator and gives what it prints.
func operate(t *testing.T, s *stack.Stack, args ...string) string {
	t.Helper()
	cmd := exec.Command(filepath.Join(stack.Bin(t), "sandtrail"), args...)
	cmd.Env = append(cmd.Environ(), "SANDTRAIL_NATS="+s.NATS, "SANDTRAIL_CLICKHOUSE=@"+filepath.Join(s.State, "clickhouse", "address"),
		"SANDTRAIL_WEBHOOK_KEY="+filepath.Join(s.State, "keys", "webhook.key"), "SANDTRAIL_OPERATOR=test", "SANDTRAIL_TENANT=acme")
	out, err := cmd.Output()
	var stderr string
	if x, ok := err.(*exec.ExitError); ok { //nolint:errorlint // of Output it is that itself
		stderr = string(x.Stderr)
	}
	require.NoError(t, err, "%v: %s", args, stderr)
	return string(out)
}

// notices are the events that came to a URL, by their types.
type notices struct {
	mu  sync.Mutex
	all []map[string]any
}

func (n *notices) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	data, err := io.ReadAll(r.Body)
	m := map[string]any{}
	if err != nil || json.Unmarshal(data, &m) != nil || r.Header.Get("webhook-signature") == "" {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	m["id"] = r.Header.Get("webhook-id")
	n.all = append(n.all, m)
}

// ids are those of the notices of a type, each once.
func (n *notices) ids(kind string) map[any]bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := map[any]bool{}
	for _, m := range n.all {
		if kindOf, _ := m["type"].(string); strings.HasSuffix(kindOf, kind) {
			all[m["id"]] = true
		}
	}
	return all
}

// A tenant's execs cost money. Once they cost as much as its budget allows that is an event, which is sent to its webhook, and creates and execs
// are refused until the budget is raised.
func TestABudgetThatIsUsedUpRefusesNewWorkUntilItIsRaised(t *testing.T) {
	needsHost(t)
	s := stack.Up(t, "--webhook-private")
	sent := &notices{}
	server := httptest.NewServer(sent)
	t.Cleanup(server.Close)
	operate(t, s, "tenant", "create", "acme")
	operate(t, s, "usage", "price", "set", "execs", "0.25", "EUR", "--per", "one", "--past", "--from", time.Now().UTC().Truncate(time.Hour).Format(time.RFC3339))
	operate(t, s, "webhook", "create", server.URL, "--type", "BudgetReached", "--private")
	operate(t, s, "budget", "set", "--amount", "1", "--currency", "EUR", "--threshold", "50", "--refuse")

	box := s.Ready(t)
	s.Exec(t, box, "true")
	require.Empty(t, sent.ids("BudgetReached"))
	s.Exec(t, box, "true")
	s.Exec(t, box, "true")
	crossed := time.Now()

	// From the exec that crosses it to the refusal: the row (2 s), adding up (15 s), and what is believed of the tenant (2 s).
	create := func() error {
		res, err := s.API.CreateSandbox(t.Context(), &computev1.CreateSandboxRequest{TenantId: "acme", SessionId: "session-1", Image: stack.Image})
		if err == nil {
			s.Destroy(t, res.GetSandboxId())
		}
		return err
	}
	var err error
	require.Eventually(t, func() bool {
		err = create()
		return err != nil
	}, time.Minute, 500*time.Millisecond)
	t.Logf("refused %s behind the exec that used the budget up", time.Since(crossed).Round(100*time.Millisecond))
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
	require.Contains(t, err.Error(), "budget of 1 EUR")

	stream, err := s.API.ExecCommand(t.Context(), &computev1.ExecCommandRequest{SandboxId: box, Command: "true"})
	if err == nil {
		_, err = stream.Recv()
	}
	require.Equal(t, codes.ResourceExhausted, status.Code(err), "%v", err)

	require.Eventually(t, func() bool { return len(sent.ids("BudgetReached")) == 2 }, time.Minute, 200*time.Millisecond, "50 % and all of it")
	var shown struct {
		State   string    `json:"state"`
		Spent   string    `json:"spent"`
		Until   time.Time `json:"refuses_until"`
		Reached []struct {
			Threshold int `json:"threshold"`
		} `json:"reached"`
	}
	require.NoError(t, json.Unmarshal([]byte(operate(t, s, "budget", "show", "--costs", "-o", "json")), &shown))
	require.Equal(t, "refusing", shown.State)
	require.Len(t, shown.Reached, 2)
	require.Equal(t, "1", shown.Spent)

	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+s.HTTP+"/api/v1/sandboxes", strings.NewReader(`{"name":"more"}`))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Sandtrail-Tenant", "acme")
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, http.StatusTooManyRequests, res.StatusCode, "%s", body)
	require.Contains(t, string(body), `"budget_exhausted"`)
	after, err := strconv.Atoi(res.Header.Get("Retry-After"))
	require.NoError(t, err)
	require.InDelta(t, time.Until(shown.Until).Seconds(), float64(after), 60)

	operate(t, s, "budget", "set", "--amount", "100", "--currency", "EUR", "--threshold", "50", "--refuse")
	require.Eventually(t, func() bool { return create() == nil }, 30*time.Second, 500*time.Millisecond)
	require.Zero(t, s.Exec(t, box, "true").Completed.GetExitCode())
	s.Destroy(t, box)
}
