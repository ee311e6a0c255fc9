package app_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/directget"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/tenant"
	"github.com/sandtrail/sandtrail/libs/topology"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	"github.com/sandtrail/sandtrail/services/gateway/app"
)

// recorded are the records of a tenant's calls so far.
func (w *world) recorded(tenant string) (all []*eventsv1.CallEnded) {
	w.t.Helper()
	err := directget.Each(context.WithoutCancel(w.t.Context()), w.JS, topology.StreamCalls, subject.Call(tenant), 1, func(m directget.Message) error {
		c := &eventsv1.CallEnded{}
		all = append(all, c)
		return proto.Unmarshal(m.Data, c)
	})
	require.NoError(w.t, err)
	return all
}

// find waits for a record and gives it.
func (w *world) find(tenant string, is func(*eventsv1.CallEnded) bool) (found *eventsv1.CallEnded) {
	w.t.Helper()
	w.until(func() bool {
		all := w.recorded(tenant)
		i := slices.IndexFunc(all, is)
		if i >= 0 {
			found = all[i]
		}
		return i >= 0
	})
	return found
}

// of finds the record of an HTTP answer.
func (w *world) of(tenant string, a answer) *eventsv1.CallEnded {
	w.t.Helper()
	id := a.header.Get("X-Correlation-Id")
	return w.find(tenant, func(c *eventsv1.CallEnded) bool { return c.GetCorrelationId() == id })
}

// beyond are actions that gRPC has no method for.
var beyond = []string{"DeleteFile", "ExtendSandbox", "WriteStdin"}

// Every method and every route leaves a record of who asked for what, under one name for one thing, and how it ended: one that was
// answered and one that was refused.
func TestEveryCallIsRecorded(t *testing.T) {
	e := newEstate(t)
	answerUsage(e.world)
	fields := map[string]string{"image": "python", "command": "true", "path": "f", "sandbox_id": e.ownBox, "exec_id": e.ownExec}
	known := slices.Clone(beyond)
	for _, m := range methods() {
		known = append(known, string(m.Name()))
		if m.Name() == "DestroySandbox" {
			fields["sandbox_id"] = e.noBox // the others still need what there is
		}
		_, err := call(e.world.as("alice"), e.conn, m, request(t, m, fields))
		fields["sandbox_id"] = e.ownBox
		c := e.find("acme", func(c *eventsv1.CallEnded) bool {
			return c.GetApi() == "grpc" && c.GetAction() == string(m.Name()) && (c.GetOutcome() == "ok") == (err == nil)
		})
		require.Equal(t, "key:alice", c.GetActor(), m.Name())
		require.Equal(t, "alice", c.GetKeyId(), m.Name())
		require.NotEmpty(t, c.GetCorrelationId(), m.Name())
		require.EqualValues(t, 1, c.GetCount(), m.Name())
	}
	stopper := e.with("ApiKey " + mint(e.world, "acme", tenant.Stop).Text)
	e.until(func() bool { return e.about(stopper, "list", "", "").status != http.StatusUnauthorized })
	for _, id := range e.operations {
		a := e.about(e.web, id, e.noBox, e.noExec)
		c := e.of("acme", a)
		require.Equal(t, a.status < http.StatusBadRequest, c.GetOutcome() == "ok", "%s: %d, %v", id, a.status, c)
		require.Equal(t, "http", c.GetApi(), id)
		require.Contains(t, known, c.GetAction(), id)
		if askedOf[id].lists {
			continue
		}
		require.Equal(t, e.noBox, c.GetSandboxId(), id)
		// A scope that is missing is a refusal with a name.
		if a = e.about(stopper, id, e.noBox, e.noExec); a.status == http.StatusForbidden {
			require.Equal(t, "scope_missing", e.of("acme", a).GetReason(), id)
		}
	}
}

func TestCallsOfNamedSandboxesAreRecorded(t *testing.T) {
	b := newBoxes(t, twoTenants).with("Authorization: Bearer " + secret("alice"))
	made := b.made("demo")
	id, _ := made["id"].(string)
	for _, c := range []struct{ method, path, action, outcome string }{
		{"GET", "/sandboxes/demo", "DescribeSandbox", "ok"},
		{"GET", "/sandboxes/nobody", "DescribeSandbox", "refused"},
		{"GET", "/sandboxes/demo/logs", "Logs", "ok"},
		{"POST", "/sandboxes/demo/stop", "StopSandbox", "ok"},
		{"POST", "/sandboxes/nobody/stop", "StopSandbox", "refused"},
		{"POST", "/sandboxes/demo/start", "StartSandbox", "ok"},
		{"POST", "/sandboxes/demo/snapshot", "Snapshot", "ok"},
		{"GET", "/poders", "Poders", "ok"},
		{"DELETE", "/sandboxes/demo", "DestroySandbox", "ok"},
	} {
		r := b.of("acme", b.send(c.method, c.path, nil))
		require.Equal(t, []string{"named", c.action, c.outcome, "alice"}, []string{r.GetApi(), r.GetAction(), r.GetOutcome(), r.GetKeyId()}, c.path)
		if r.GetOutcome() == "ok" && c.action != "Poders" {
			require.Equal(t, id, r.GetSandboxId(), c.path)
		}
	}
	b.find("acme", func(c *eventsv1.CallEnded) bool { return c.GetAction() == "CreateSandbox" && c.GetSandboxId() == id })
}

// A tool is recorded by what it asks of the API, and by its own name where it does not get that far.
func TestCallsOfToolsAreRecorded(t *testing.T) {
	for name, version := range protocols {
		t.Run(name, func(t *testing.T) {
			w := newWeb(t)
			a := w.agent(t, version)
			box, _ := a.call("create_sandbox", map[string]any{})["sandbox_id"].(string)
			c := w.find("acme", func(c *eventsv1.CallEnded) bool { return c.GetAction() == "CreateSandbox" })
			require.Equal(t, []string{"mcp", "key:alice", "ok", box}, []string{c.GetApi(), c.GetActor(), c.GetOutcome(), c.GetSandboxId()})
			problem := a.refused("run_command", map[string]any{"sandbox_id": box, "nonsense": 1})
			c = w.find("acme", func(c *eventsv1.CallEnded) bool { return c.GetAction() == "RunCommand" })
			require.Equal(t, []string{"mcp", "key:alice", "refused", "validation"}, []string{c.GetApi(), c.GetActor(), c.GetOutcome(), c.GetReason()})
			require.Equal(t, problem["correlation_id"], c.GetCorrelationId())
			w.find("acme", func(c *eventsv1.CallEnded) bool {
				return c.GetApi() == "mcp" && c.GetAction() == "Message" && c.GetOutcome() == "ok"
			})
			for _, c := range w.recorded("acme") {
				require.Equal(t, "mcp", c.GetApi(), "a tool's call is none of a client of gRPC: %v", c)
			}
		})
	}
}

// A record names what was made and run, with the key of the log, and holds nothing that a caller wrote.
func TestARecordNamesItsTargetAndHoldsNoSecret(t *testing.T) {
	w := newWeb(t)
	const canary = "canary-7d1f"
	secret := mint(w.world, "acme", tenant.All)
	w.auth = "ApiKey " + secret.Text
	w.until(func() bool { return w.send("GET", "/sandbox", "").status == http.StatusOK })
	a := w.send("POST", "/sandbox/create", fmt.Sprintf(`{"env":{"TOKEN":%q}}`, canary), "Idempotency-Key: "+canary)
	box, _ := a.is(t, 201)["sandbox_id"].(string)
	w.until(func() bool { return w.send("GET", "/sandbox/"+box+"/status", "").is(t, 200)["status"] == "running" })
	x := w.send("POST", "/sandbox/"+box+"/execute", fmt.Sprintf(`{"command":["true",%q],"env":{"A":%q},"stdin":%q}`, canary, canary, canary))
	exec, _ := x.is(t, 200)["execution_id"].(string)
	last := []answer{
		w.send("PUT", "/sandbox/"+box+"/files?path="+canary, canary, "Content-Type: application/octet-stream"),
		w.send("GET", "/sandbox/"+canary+"/status", ""),
		w.send("GET", "/sandbox/"+box+"/status?x="+canary, ""),
	}
	c := w.of("acme", x)
	require.Equal(t, []string{box, exec, secret.ID}, []string{c.GetSandboxId(), c.GetExecId(), c.GetKeyId()})
	require.Positive(t, c.GetDurationUs())
	require.Equal(t, box, w.of("acme", a).GetSandboxId(), "a create's target is what it made")
	for _, a := range last {
		w.of("acme", a)
	}
	text := everything(t, w.JS, topology.StreamCalls)
	require.NotContains(t, text, canary)
	require.NotContains(t, text, secret.Text)
	require.NotContains(t, text, secret.Text[3:20])
}

// Strangers leave a few records however often they knock; none of their words is kept.
func TestStrangersAreCounted(t *testing.T) {
	w := newWeb(t)
	const knocks = 1000
	for i := range knocks {
		_, err := w.GetExec(as(t.Context(), fmt.Sprint("stranger", i)), &computev1.GetExecRequest{ExecId: ids.New()})
		require.Error(t, err)
	}
	for range 20 {
		w.with("").send("GET", "/sandbox", "")
		w.send("GET", "/nowhere/"+ids.New(), "")
	}
	require.Eventually(t, func() bool {
		counted := uint64(0)
		for _, c := range w.recorded(subject.NoTenant) {
			if c.GetAction() == "GetExec" {
				counted += c.GetCount()
			}
		}
		return counted == knocks
	}, 40*time.Second, 50*time.Millisecond, "each is counted")
	all := w.recorded(subject.NoTenant)
	require.LessOrEqual(t, len(all), 12)
	for _, c := range all {
		require.Empty(t, c.GetActor())
		require.Equal(t, "refused", c.GetOutcome())
		require.NotNil(t, c.GetLastAt())
	}
	require.NotContains(t, everything(t, w.JS, topology.StreamCalls), "stranger")
}

// A gateway that ends in order has stored the record of every call that it has answered.
func TestAnOrderlyStopLosesNoRecord(t *testing.T) {
	w := newWorld(t, twoTenants)
	ctx, stop := context.WithCancel(t.Context())
	a, err := app.New(ctx, app.Config{GRPC: "127.0.0.1:0", HTTP: "127.0.0.1:0", KeysFile: w.keys, SealKeyFile: w.seal, Drain: time.Second, Heartbeat: beat},
		app.Deps{NC: w.connect(), Log: w.logger(), Registry: prometheus.NewRegistry()})
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	client := computev1.NewComputeServiceClient(w.dial(a))
	const calls = 200
	for range calls {
		_, err := client.GetExec(w.as("alice"), &computev1.GetExecRequest{ExecId: ids.New()})
		require.Equal(t, "exec_not_found", detail(t, err).GetReason())
	}
	_, err = client.GetExec(t.Context(), &computev1.GetExecRequest{ExecId: ids.New()})
	require.Error(t, err)
	open, err := client.WatchEvents(w.as("alice"), &computev1.WatchEventsRequest{})
	require.NoError(t, err)
	_, err = open.Header()
	require.NoError(t, err)
	stop()
	require.NoError(t, <-ended)
	require.Len(t, w.recorded("acme"), calls+1, "that of the stream which the stop has cut too")
	require.Len(t, w.recorded(subject.NoTenant), 1, "nor a count")
}

// BenchmarkRecordedCall is a short call, whose record is written behind its answer.
func BenchmarkRecordedCall(b *testing.B) {
	w := newWorld(b, twoTenants)
	ctx := as(b.Context(), "alice")
	for b.Loop() {
		_, _ = w.GetExec(ctx, &computev1.GetExecRequest{ExecId: ids.New()})
	}
}
