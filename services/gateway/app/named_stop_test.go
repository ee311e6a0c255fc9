package app_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/tenant"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
)

// turn stops or starts a sandbox. One with the label start=fails does not come up again; one with stop=hangs stays stopping.
func (p *peer) turn(c *commandsv1.SandboxCommand, do func(string, sandbox.Command) error) error {
	s, err := p.load(c.GetTenantId(), c.GetSandboxId())
	if err != nil {
		return err
	}
	first, then := sandbox.Command(sandbox.Stop{}), sandbox.Command(sandbox.MarkStopped{At: time.Now()})
	if c.GetStart() != nil {
		first, then = sandbox.Restart{At: time.Now()}, sandbox.MarkReady{Worker: s.Worker, Hostname: "h", RuntimeID: "r", ImageDigest: "d"}
		if s.Labels["start"] == "fails" {
			then = sandbox.GiveUp{Reason: fault.ReasonDiskFull, Message: "the worker's disk is full"}
		}
	}
	if err := do(c.GetCommandId(), first); err != nil || s.Labels["stop"] == "hangs" {
		return err
	}
	return do(ids.New(), then)
}

func (b *boxes) labelled(name, label string) {
	b.t.Helper()
	k, v, _ := strings.Cut(label, "=")
	b.json("POST", "/sandboxes", map[string]any{"name": name, "labels": map[string]string{k: v}}).is(b.t, 201)
}

func (b *boxes) job(v map[string]any) []any {
	b.t.Helper()
	j := b.send("GET", "/jobs/"+v["job_id"].(string), nil).is(b.t, 200)
	return []any{j["type"], j["status"], j["sandbox_name"]}
}

func TestANamedSandboxIsStoppedAndStartedAndItsJobsSaySo(t *testing.T) {
	w := newBoxes(t, nil)
	w.peer.script("bash", func(x *execution) { x.complete(0) })
	id := w.made("demo")["id"].(string)
	stopped := w.send("POST", "/sandboxes/demo/stop", nil).is(t, 200)
	require.Equal(t, []any{"STOPPED", id, "demo"}, []any{stopped["state"], stopped["id"], stopped["name"]})
	require.Equal(t, []any{"STOP", "COMPLETED", "demo"}, w.job(stopped))
	require.Equal(t, "STOPPED", w.send("GET", "/sandboxes/demo", nil).is(t, 200)["state"])

	before := time.Now()
	message := w.json("POST", "/sandboxes/execute?sandbox=demo", map[string]any{"code": "true"}).refused(t, 409, "sandbox_stopped")
	require.Contains(t, message, "start it")
	w.send("GET", "/sandboxes/demo/toolbox/files", nil).refused(t, 409, "sandbox_stopped")
	require.Less(t, time.Since(before), patience, "nobody waits for what only a start brings")
	w.json("POST", "/sandboxes", map[string]any{"name": "demo"}).refused(t, 409, "name_taken")
	require.Equal(t, "STOPPED", w.send("POST", "/sandboxes/demo/stop", nil).is(t, 200)["state"], "once more is no error")

	started := w.send("POST", "/sandboxes/"+id+"/start", nil).is(t, 200)
	require.Equal(t, []any{"RUNNING", id, "demo"}, []any{started["state"], started["id"], started["name"]})
	require.Equal(t, []any{"START", "COMPLETED", "demo"}, w.job(started))
	require.Equal(t, "RUNNING", w.send("POST", "/sandboxes/demo/start", nil).is(t, 200)["state"], "once more is no error")
	w.json("POST", "/sandboxes/execute?sandbox=demo", map[string]any{"code": "true"}).is(t, 200)

	again := w.send("POST", "/sandboxes/demo/stop", nil).is(t, 200)
	require.NotEqual(t, stopped["job_id"], again["job_id"], "each stop is a job of its own")
	require.Equal(t, []any{"STOP", "COMPLETED", "demo"}, w.job(stopped))
	for _, none := range []string{"stop-" + id, "start-" + id + "-0", "stop-" + id + "-1", strings.Replace(started["job_id"].(string), "start", "stop", 1)} {
		w.send("GET", "/jobs/"+none, nil).refused(t, 404, "job_not_found")
	}
	require.Equal(t, "TERMINATED", w.send("DELETE", "/sandboxes/demo", nil).is(t, 200)["state"])
	w.send("POST", "/sandboxes/"+id+"/start", nil).refused(t, 409, "sandbox_destroyed")
	w.send("POST", "/sandboxes/none/stop", nil).refused(t, 404, "sandbox_not_found")
}

func TestAStartThatComesToNothingIsAnErrorAndLeavesTheSandboxStopped(t *testing.T) {
	w := newBoxes(t, nil)
	w.labelled("demo", "start=fails")
	w.send("POST", "/sandboxes/demo/stop", nil).is(t, 200)
	message := w.send("POST", "/sandboxes/demo/start", nil).refused(t, 409, "sandbox_stopped")
	require.Contains(t, message, "disk is full")
	box := w.send("GET", "/sandboxes/demo", nil).is(t, 200)
	require.Equal(t, []any{"STOPPED", "disk_full"}, []any{box["state"], box["reason"]})
}

func TestAStopThatIsDecidedAndNotDoneSaysStopping(t *testing.T) {
	w := newBoxes(t, nil)
	w.labelled("demo", "stop=hangs")
	id := w.send("GET", "/sandboxes/demo", nil).is(t, 200)["id"].(string)
	w.ordersStop(id)
	require.Equal(t, "STOPPING", w.send("GET", "/sandboxes/demo", nil).is(t, 200)["state"])
	w.json("POST", "/sandboxes/execute?sandbox=demo", map[string]any{"code": "true"}).refused(t, 409, "sandbox_stopped")
	w.send("POST", "/sandboxes/demo/start", nil).refused(t, 409, "illegal_state")
}

// ordersStop has a stop decided without waiting for its end.
func (b *boxes) ordersStop(id string) {
	b.t.Helper()
	require.NoError(b.t, b.peer.sandboxCommand(&commandsv1.SandboxCommand{
		CommandId: ids.New(), TenantId: "default", SandboxId: id, Command: &commandsv1.SandboxCommand_Stop{Stop: &commandsv1.StopSandbox{}},
	}))
}

func TestStopAndStartOverGRPC(t *testing.T) {
	w := newWorld(t, map[string]string{"acme": "acme", "globex": "globex"})
	id := w.create(w.as("acme"))
	stopped, err := w.StopSandbox(w.as("acme"), &computev1.StopSandboxRequest{SandboxId: id})
	require.NoError(t, err)
	require.Equal(t, id, stopped.GetSandboxId())
	_, err = w.StartSandbox(w.as("globex"), &computev1.StartSandboxRequest{SandboxId: id})
	require.Equal(t, codes.NotFound, status.Code(err), "another tenant does not see it")
	transcript := drainStream(w.exec(w.as("acme"), id, "true"))
	require.Equal(t, "sandbox_stopped", detail(t, transcript.failure).GetReason())
	started, err := w.StartSandbox(w.as("acme"), &computev1.StartSandboxRequest{SandboxId: id})
	require.NoError(t, err)
	require.Equal(t, id, started.GetSandboxId())
	require.NotNil(t, drainStream(w.exec(w.as("acme"), id, "true")).completed)

	// With a key a repeated request orders nothing again, whatever has become of the sandbox.
	_, err = w.StopSandbox(keyed(w.as("acme"), "k1"), &computev1.StopSandboxRequest{SandboxId: id})
	require.NoError(t, err)
	_, err = w.StartSandbox(w.as("acme"), &computev1.StartSandboxRequest{SandboxId: id})
	require.NoError(t, err)
	_, err = w.StopSandbox(keyed(w.as("acme"), "k1"), &computev1.StopSandboxRequest{SandboxId: id})
	require.NoError(t, err)
	b, err := w.DescribeSandbox(w.as("acme"), &computev1.DescribeSandboxRequest{SandboxId: id})
	require.NoError(t, err)
	require.Equal(t, sandbox.Ready, b.GetDetail().GetState())

	_, err = w.StopSandbox(w.as("acme"), &computev1.StopSandboxRequest{SandboxId: "no id"})
	require.Equal(t, codes.InvalidArgument, status.Code(err))
}

func TestAKeyWithoutTheScopeStopNeitherStopsNorStarts(t *testing.T) {
	w := newBoxes(t, map[string]string{"acme": "acme"})
	key := mint(w.world, "acme", tenant.Inspect|tenant.Create)
	w.until(func() bool {
		return w.with("Authorization: Bearer "+key.Text).send("GET", "/sandboxes", nil).status == 200
	})
	weak := w.with("X-Sandrpod-Token: " + key.Text)
	weak.send("POST", "/sandboxes/a/stop", nil).refused(t, 403, "scope_missing")
	weak.send("POST", "/sandboxes/a/start", nil).refused(t, 403, "scope_missing")
}
