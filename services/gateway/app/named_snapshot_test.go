package app_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
)

// snapshot makes a snapshot as a worker does; one of a sandbox that is labelled so fails.
func (p *peer) snapshot(c *commandsv1.SandboxCommand, do func(string, sandbox.Command) error) error {
	if err := do(c.GetCommandId(), sandbox.TakeSnapshot{CommandID: c.GetCommandId(), Image: c.GetSnapshot().GetImage()}); err != nil {
		return err
	}
	s, err := p.load(c.GetTenantId(), c.GetSandboxId())
	if err != nil {
		return err
	}
	if s.Labels["snapshot"] == "fails" {
		return do(ids.New(), sandbox.FailSnapshot{Sequence: s.Snapshot.Seq, Reason: fault.ReasonDiskFull, Message: "the worker's disk is full"})
	}
	return do(ids.New(), sandbox.MarkSnapshotted{Sequence: s.Snapshot.Seq, Digest: "sha256:d", Bytes: 10, Files: 2})
}

func TestASnapshotAnswersTheNameOfAnImageAndAJob(t *testing.T) {
	w := newBoxes(t, nil)
	w.made("Demo")
	plain := w.send("POST", "/sandboxes/Demo/snapshot", nil).is(t, 200)
	require.Equal(t, []any{"demo", "sha256:d", "COMPLETED"}, []any{plain["image"], plain["digest"], plain["status"]}, "its name, as an image's may be written")
	require.Equal(t, "RUNNING", plain["sandbox"].(map[string]any)["state"])
	require.Equal(t, []any{"SNAPSHOT", "COMPLETED", "Demo"}, w.job(plain))

	named := w.send("POST", "/sandboxes/Demo/snapshot?image=mine:1", nil, "Idempotency-Key: k").is(t, 200)
	require.Equal(t, "mine:1", named["image"])
	require.NotEqual(t, plain["job_id"], named["job_id"])
	again := w.send("POST", "/sandboxes/Demo/snapshot?image=mine:1", nil, "Idempotency-Key: k").is(t, 200)
	require.Equal(t, named["job_id"], again["job_id"], "under one key it is asked for once")
	w.send("POST", "/sandboxes/Demo/snapshot?image=mine:2", nil, "Idempotency-Key: k").refused(t, 409, "idempotency_mismatch")
	job := w.send("GET", "/jobs/"+named["job_id"].(string), nil).is(t, 200)
	require.Equal(t, []any{"mine:1", "sha256:d", named["sequence"]}, []any{
		job["result"].(map[string]any)["image"], job["result"].(map[string]any)["digest"], job["result"].(map[string]any)["sequence"],
	})
	for _, none := range []string{strings.Replace(named["job_id"].(string), "snapshot", "stop", 1), named["job_id"].(string) + "1", "snapshot-" + ids.New() + "-1"} {
		w.send("GET", "/jobs/"+none, nil).refused(t, 404, "job_not_found")
	}
	w.send("POST", "/sandboxes/Demo/snapshot?image=a%20b", nil).refused(t, 422, "validation")
	w.send("POST", "/sandboxes/none/snapshot", nil).refused(t, 404, "sandbox_not_found")
	require.Contains(t, string(w.send("GET", "/sandboxes/Demo/logs", nil).body), "snapshot mine:1 made")

	w.send("POST", "/sandboxes/Demo/stop", nil).is(t, 200)
	require.Contains(t, w.send("POST", "/sandboxes/Demo/snapshot", nil).refused(t, 409, "sandbox_stopped"), "start it")
}

func TestASnapshotThatFailsSaysWhy(t *testing.T) {
	w := newBoxes(t, nil)
	w.labelled("demo", "snapshot=fails")
	require.Contains(t, w.send("POST", "/sandboxes/demo/snapshot", nil).refused(t, 507, "disk_full"), "the worker's disk is full")
	require.Contains(t, string(w.send("GET", "/sandboxes/demo/logs", nil).body), "snapshot failed: the worker's disk is full")
}

func TestASnapshotOfAnotherTenantsSandboxIsRefused(t *testing.T) {
	b := newBoxes(t, twoTenants)
	alice, bob := b.with("Authorization: Bearer "+secret("alice")), b.with("Authorization: Bearer "+secret("bob"))
	made := alice.made("demo")
	bob.send("POST", "/sandboxes/demo/snapshot", nil).refused(t, 404, "sandbox_not_found")
	bob.send("POST", "/sandboxes/"+made["id"].(string)+"/snapshot", nil).refused(t, 404, "sandbox_not_found")
	taken := alice.send("POST", "/sandboxes/demo/snapshot", nil).is(t, 200)
	bob.send("GET", "/jobs/"+taken["job_id"].(string), nil).refused(t, 404, "job_not_found")
}
