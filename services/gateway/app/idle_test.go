package app_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/services/gateway/app"
)

// commandsAbout is how many commands came about a sandbox of acme.
func (w *world) commandsAbout(id string) int { return w.peer.count("cmd.sandbox.acme." + id) }

// What is done with a sandbox is told before it is done, once for a quarter of its idle timeout; what only looks at it is no use.
func TestTheUseOfASandboxWithAnIdleTimeoutIsTold(t *testing.T) {
	w := newWeb(t)
	id, _ := w.send("POST", "/sandbox/create", `{"idle_timeout_seconds":600}`).is(t, 201)["sandbox_id"].(string)
	w.until(func() bool { return w.send("GET", "/sandbox/"+id+"/status", "").is(t, 200)["status"] == "running" })
	require.Equal(t, json.Number("600"), w.send("GET", "/sandbox/"+id+"/status", "").is(t, 200)["idle_timeout_seconds"])
	d, err := w.DescribeSandbox(w.as("alice"), &computev1.DescribeSandboxRequest{SandboxId: id})
	require.NoError(t, err)
	require.Equal(t, 10*time.Minute, d.GetDetail().GetLimits().GetIdleTimeout().AsDuration())
	w.send("GET", "/quota", "").is(t, 200)
	require.Equal(t, 1, w.commandsAbout(id), "its create: nobody has used it")

	for name, use := range map[string]func(){
		"a command": func() { w.send("POST", "/sandbox/"+id+"/execute", `{"command":["true"]}`).is(t, 200) },
		"a file":    func() { w.send("PUT", "/sandbox/"+id+"/files?path=f", "x", octets).is(t, 200) },
		"a list":    func() { w.send("GET", "/sandbox/"+id+"/files/list?path=", "").is(t, 200) },
	} {
		use()
		require.Equal(t, 2, w.commandsAbout(id), name)
	}
	s, err := w.peer.load("acme", id)
	require.NoError(t, err)
	require.WithinDuration(t, time.Now().Add(5*time.Minute), s.UsedUntil, time.Minute)
	_, conn := w.gateway(w.connect())
	other := computev1.NewComputeServiceClient(conn)
	_, err = other.ListFiles(w.as("alice"), &computev1.ListFilesRequest{SandboxId: id})
	require.NoError(t, err)
	require.Equal(t, 3, w.commandsAbout(id), "another gateway cannot know")
	again, err := w.peer.load("acme", id)
	require.NoError(t, err)
	require.Equal(t, s.Seq, again.Seq, "and nothing more is recorded")

	free := w.box()
	before := w.commandsAbout(free)
	w.send("POST", "/sandbox/"+free+"/execute", `{"command":["true"]}`).is(t, 200)
	require.Equal(t, before, w.commandsAbout(free), "without a timeout nothing is told")
	for _, wrong := range []string{`9`, `0`, `-1`, `1.5`, `"600"`, `2592001`} {
		w.send("POST", "/sandbox/create", `{"idle_timeout_seconds":`+wrong+`}`).problem(t, 422, "validation", "idle_timeout_seconds")
	}
}

// end ends a sandbox behind everybody's back.
func (p *peer) end(tenant, id, reason string) {
	p.w.t.Helper()
	for _, c := range []sandbox.Command{sandbox.Destroy{Reason: reason}, sandbox.MarkDestroyed{At: time.Now(), DeleteAfter: time.Now().Add(time.Hour)}} {
		_, err := eventlog.Execute(p.w.t.Context(), p.log, subject.Sandbox(tenant, id), func(h eventlog.History) ([]envelope.Event, error) {
			s, err := sandbox.Fold(h)
			if err != nil {
				return nil, err
			}
			bodies, err := sandbox.Decide(s, c)
			return sandbox.Events(sandbox.CommandMeta{ID: ids.New(), Time: time.Now(), Tenant: tenant}, bodies...), err
		})
		require.NoError(p.w.t, err)
	}
}

// Whoever comes as an idle sandbox ends is told so, and starts nothing.
func TestAUseBehindTheEndIsRefused(t *testing.T) {
	w := newWeb(t)
	id, _ := w.send("POST", "/sandbox/create", `{"idle_timeout_seconds":600}`).is(t, 201)["sandbox_id"].(string)
	w.until(func() bool { return w.send("GET", "/sandbox/"+id+"/status", "").is(t, 200)["status"] == "running" })
	w.peer.set(func() {
		w.peer.onUse = func() { w.peer.end("acme", id, sandbox.ReasonIdle) }
	})
	w.send("POST", "/sandbox/"+id+"/execute", `{"command":["true"]}`).problem(t, 409, "sandbox_destroyed")
	require.Zero(t, w.peer.count("cmd.exec."), "nothing was asked for")
	body := w.send("GET", "/sandbox/"+id+"/status", "").is(t, 200)
	require.Equal(t, []any{"terminated", "idle"}, []any{body["status"], body["reason"]})
}

// More time over gRPC is what it is over HTTP.
func TestExtendOverGRPC(t *testing.T) {
	w := newWorld(t, twoTenants, func(c *app.Config) { c.MaxRuntime, c.Runtime = time.Hour, 10*time.Minute })
	made, err := w.CreateSandbox(w.as("alice"), &computev1.CreateSandboxRequest{Image: "python"})
	require.NoError(t, err)
	id := made.GetSandboxId()
	extend := func(name, key string, by time.Duration) (time.Time, error) {
		ctx := w.as(name)
		if key != "" {
			ctx = keyed(ctx, key)
		}
		res, err := w.ExtendSandbox(ctx, &computev1.ExtendSandboxRequest{SandboxId: id, Timeout: durationpb.New(by)})
		if err == nil {
			require.Equal(t, id, res.GetSandboxId())
		}
		return res.GetExpiresAt().AsTime(), err
	}
	begin := made.GetCreatedAt().AsTime().Add(10 * time.Minute)
	same, err := extend("alice", "", time.Minute)
	require.NoError(t, err)
	require.WithinDuration(t, begin, same, time.Second, "nobody's time is made shorter")
	more, err := extend("alice", "k", 30*time.Minute)
	require.NoError(t, err)
	require.WithinDuration(t, time.Now().Add(30*time.Minute), more, patience)
	repeated, err := extend("alice", "k", 30*time.Minute)
	require.NoError(t, err)
	require.Equal(t, more, repeated)
	_, err = extend("alice", "k", 31*time.Minute)
	require.Equal(t, "idempotency_mismatch", detail(t, err).GetReason())
	_, err = extend("alice", "", 2*time.Hour)
	require.Contains(t, detail(t, err).GetFields(), "timeout")
	_, err = extend("bob", "", time.Minute)
	require.Equal(t, codes.NotFound, status.Code(err))
	_, err = w.ExtendSandbox(w.as("alice"), &computev1.ExtendSandboxRequest{SandboxId: ids.New()})
	require.Contains(t, detail(t, err).GetFields(), "timeout")
	_, err = w.DestroySandbox(w.as("alice"), &computev1.DestroySandboxRequest{SandboxId: id})
	require.NoError(t, err)
	_, err = extend("alice", "", time.Minute)
	require.Equal(t, "sandbox_destroyed", detail(t, err).GetReason())
}
