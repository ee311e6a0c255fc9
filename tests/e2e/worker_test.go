package e2e

import (
	"bytes"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"

	"github.com/sandtrail/sandtrail/libs/topology"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/tests/e2e/stack"
)

// waitFor is how long a busy machine may take for what a fleet does within seconds.
const waitFor = 2 * time.Minute

// heard waits until a worker is in a state.
func heard(t *testing.T, s *stack.Stack, worker, state string) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Log(worker, "printed:\n", s.Log(worker))
		}
	}()
	require.Eventually(t, func() bool {
		code, p := s.Named(t, http.MethodGet, "/poders/"+worker, nil)
		return code == http.StatusOK && p["state"] == state
	}, waitFor, 100*time.Millisecond, "%s is not %s", worker, state)
}

// named makes a named sandbox and waits until it runs.
func named(t *testing.T, s *stack.Stack, path string, body map[string]any) map[string]any {
	t.Helper()
	_, made := s.Named(t, http.MethodPost, path, body)
	if box, ok := made["sandbox"].(map[string]any); ok {
		made = box
	}
	require.Equal(t, "RUNNING", made["state"], "%v", made)
	return made
}

// said runs code in a named sandbox and gives what it printed.
func said(t *testing.T, s *stack.Stack, name, code string) string {
	t.Helper()
	status, ran := s.Named(t, http.MethodPost, "/sandboxes/execute?sandbox="+name, map[string]any{"language": "bash", "code": code})
	require.Equal(t, http.StatusOK, status, "%v", ran)
	require.Zero(t, ran["exit_code"], "%v", ran)
	out, _ := ran["stdout"].(string)
	return out
}

func TestAWorkerJoinsAndRunsWhatIsPlacedOnIt(t *testing.T) {
	needsHost(t)
	s := stack.Up(t)
	state := s.Join(t, "second", nil, "--region", "north", "--provider", "cloud", "--label", "disk=fast", "--max-sandboxes", "2")
	heard(t, s, "second", "ONLINE")
	_, p := s.Named(t, http.MethodGet, "/poders/second", nil)
	require.Equal(t, []any{"north", "cloud", map[string]any{"disk": "fast"}}, []any{p["region"], p["provider_type"], p["labels"]})
	require.EqualValues(t, 2, p["resources"].(map[string]any)["max_containers"])

	byName := named(t, s, "/poders/second/sandboxes", map[string]any{"name": "by-name"})
	byRegion := named(t, s, "/sandboxes", map[string]any{
		"name": "by-region", "region": "north", "provider_type": "cloud", "worker_labels": map[string]string{"disk": "fast"},
	})
	elsewhere := named(t, s, "/poders/local/sandboxes", map[string]any{"name": "elsewhere"})
	require.Equal(t, []any{"second", "second", "local"}, []any{byName["poder_id"], byRegion["poder_id"], elsewhere["poder_id"]})
	require.Contains(t, byRegion["placement_reasons"], `local: in region "", not "north"`)
	_, refused := s.Named(t, http.MethodPost, "/sandboxes", map[string]any{"name": "slow", "worker_labels": map[string]string{"disk": "slow"}})
	require.Contains(t, refused["message"], `second: its label "disk" is "fast", not "slow"`)
	require.Equal(t, "42\n", said(t, s, "by-name", "echo $((6*7)) | tee /workspace/kept"))
	require.DirExists(t, filepath.Join(state, "sandboxes", byName["id"].(string)), "it runs there")
	require.NoDirExists(t, filepath.Join(s.State, "sandboxes", byName["id"].(string)))
	code, full := s.Named(t, http.MethodPost, "/sandboxes", map[string]any{"name": "one-more", "region": "north"})
	require.GreaterOrEqual(t, code, 400, "%v", full)

	// One that is cordoned keeps what it has, and gets nothing new; also over its end.
	out, err := s.Sandtrail("cordon", "--state", state, "--reason", "a new kernel")
	require.NoError(t, err, out)
	cordoned := func(want any) {
		require.Eventually(t, func() bool {
			_, p := s.Named(t, http.MethodGet, "/poders/second", nil)
			return p["cordoned"] == want
		}, waitFor, 100*time.Millisecond)
	}
	cordoned("a new kernel")
	code, full = s.Named(t, http.MethodDelete, "/sandboxes/by-region", nil)
	require.Equal(t, http.StatusOK, code, "%v", full)
	_, refused = s.Named(t, http.MethodPost, "/poders/second/sandboxes", map[string]any{"name": "more"})
	require.Contains(t, refused["message"], "second: cordoned: a new kernel")
	require.Equal(t, "42\n", said(t, s, "by-name", "cat /workspace/kept"))

	// A worker that is replaced finds what its programs did meanwhile.
	left := s.Begin(t, 1, counting(byName["id"].(string), 400, 10*time.Millisecond))
	s.Interrupt("second")
	s.Rejoin("second")
	s.Finish(t, &left)
	require.Zero(t, left.Completed.GetExitCode())
	require.Equal(t, 400, strings.Count(string(left.Stdout), "\n"))
	require.Equal(t, "42\n", said(t, s, "by-name", "cat /workspace/kept"))

	cordoned("a new kernel")
	out, err = s.Sandtrail("uncordon", "--state", state)
	require.NoError(t, err, out)
	cordoned(nil)
	named(t, s, "/poders/second/sandboxes", map[string]any{"name": "more"})

	// Two on one state would both act on its sandboxes.
	out, err = s.Sandtrail("worker", "--name", "second", "--nats", s.NATS, "--state", state, "--seal-key-file", s.SealKey())
	require.Error(t, err)
	require.Contains(t, out, "another sandtrail serves "+state)
}

func TestAWorkerThatJoinsWithItsOwnKeyIsRefusedNothing(t *testing.T) {
	needsHost(t)
	s, refused := stack.Guarded(t)
	t.Cleanup(func() { require.Empty(t, refused()) })
	s.Join(t, stack.Joiner, nil)
	require.Eventually(t, func() bool {
		kv, err := s.JS.KeyValue(t.Context(), topology.BucketWorker)
		if err != nil {
			return false
		}
		_, err = kv.Get(t.Context(), stack.Joiner)
		return err == nil
	}, waitFor, 100*time.Millisecond)
	// The worker with fewer sandboxes is taken: one of three is the joiner's.
	on := map[string]string{}
	for range 3 {
		id := s.Ready(t)
		on[s.Describe(t, id).GetDetail().GetWorker()] = id
	}
	id := on[stack.Joiner]
	require.NotEmpty(t, id, "%v", on)
	run := s.Sh(t, id, "echo out; echo err >&2; exit 3")
	require.Equal(t, int32(3), run.Completed.GetExitCode())
	_, err := s.API.WriteFile(metadata.AppendToOutgoingContext(t.Context(), "idempotency-key", "one"), &computev1.WriteFileRequest{SandboxId: id, Path: "note", Data: []byte("kept")})
	require.NoError(t, err)
	require.Equal(t, run.ID, s.Usage(t, run.ID).GetExecId())
	left := s.Begin(t, 1, counting(id, 300, 10*time.Millisecond))
	s.Interrupt(stack.Joiner)
	s.Rejoin(stack.Joiner)
	s.Finish(t, &left)
	require.Equal(t, 300, strings.Count(string(left.Stdout), "\n"))
	s.Destroy(t, id)
}

func TestWorkersThatVanishAreOfflineAndTheirSandboxesComeBackWhole(t *testing.T) {
	needsHost(t)
	s := stack.Up(t)
	const lines = 2000
	fleet := []string{"cut", "killed", "held", "well"}
	nets, boxes, running := map[string]*stack.Net{}, map[string]string{}, map[string]*stack.Result{}
	for _, w := range fleet {
		nets[w] = s.Network(t)
		s.Join(t, w, nets[w])
	}
	for _, w := range fleet {
		heard(t, s, w, "ONLINE")
		box := named(t, s, "/poders/"+w+"/sandboxes", map[string]any{"name": w})
		boxes[w] = box["id"].(string)
		said(t, s, w, "echo "+w+" > /workspace/kept")
		r := s.Begin(t, 1, counting(boxes[w], lines, 20*time.Millisecond))
		running[w] = &r
	}

	nets["cut"].Cut()
	s.Kill("killed")
	s.Signal("held", syscall.SIGSTOP)
	for _, w := range fleet[:3] {
		heard(t, s, w, "OFFLINE")
		_, box := s.Named(t, http.MethodGet, "/sandboxes/"+w, nil)
		require.Equal(t, []any{"ERROR", "worker_offline"}, []any{box["state"], box["reason"]}, w)
		require.Contains(t, box["error_message"], "worker "+w+" was heard of last at")
		code, refused := s.Named(t, http.MethodPost, "/poders/"+w+"/sandboxes", map[string]any{"name": "more-" + w})
		require.GreaterOrEqual(t, code, 400, "%v", refused)
	}
	_, box := s.Named(t, http.MethodGet, "/sandboxes/well", nil)
	require.Equal(t, "RUNNING", box["state"])

	nets["cut"].Heal()
	s.Rejoin("killed")
	s.Signal("held", syscall.SIGCONT)
	for _, w := range fleet {
		heard(t, s, w, "ONLINE")
		_, box := s.Named(t, http.MethodGet, "/sandboxes/"+w, nil)
		require.Equal(t, []any{"RUNNING", nil, boxes[w]}, []any{box["state"], box["reason"], box["id"]}, w)
		s.Finish(t, running[w])
		require.Zero(t, running[w].Completed.GetExitCode(), w)
		require.Empty(t, running[w].Gaps, w)
		require.Equal(t, lines, bytes.Count(running[w].Stdout, []byte("\n")), w)
		require.Equal(t, lines, bytes.Count(running[w].Stderr, []byte("\n")), w)
		require.Equal(t, w+"\n", said(t, s, w, "cat /workspace/kept"))
		require.Equal(t, []string{"SandboxRequested", "SandboxStarting", "SandboxReady"}, sampleless(s.SandboxEvents(t, boxes[w])), "nothing happened to it")
	}
}

// sampleless are events without those that only say what was used.
func sampleless(events []string) []string {
	return slices.DeleteFunc(events, func(e string) bool { return strings.Contains(e, "Usage") || strings.Contains(e, "Sampled") })
}
