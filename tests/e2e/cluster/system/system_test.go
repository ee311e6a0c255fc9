package system_test

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sandtrail/sandtrail/libs/pause"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/tests/e2e/cluster/system"
	"github.com/sandtrail/sandtrail/tests/e2e/stack"
)

// patience is for what takes seconds on a machine of its own.
const patience = 2 * time.Minute

func limit(t testing.TB) context.Context {
	t.Helper()
	ctx, stop := context.WithTimeout(context.Background(), patience)
	t.Cleanup(stop)
	return ctx
}

// TestTheSystemOnACluster installs the chart on a real node, uses what it gives, breaks the cluster under it, and takes it away again.
func TestTheSystemOnACluster(t *testing.T) {
	w := installed(t)
	t.Run("the chart's own test passes", func(t *testing.T) { require.NoError(t, w.install.Test(limit(t))) })
	t.Run("accounts may do what they need and no more", w.rights)
	t.Run("the quickstart as it is written", w.quickstart)
	t.Run("100 MiB of output, byte for byte", w.output)
	t.Run("sandboxes and services are closed to each other and to others", w.network)
	t.Run("faults of the cluster", w.faults)
	t.Run("many sandboxes at once", w.many)
	t.Run("uninstalled, nothing is left", w.uninstall)
}

var passed = regexp.MustCompile(`Quickstart passed: sandbox (\S+), usage row (\S+)`)

// quickstart runs the script of `make quickstart`, which checks each answer and the row of ClickHouse; then the history is looked at, and
// what it left in the cluster.
func (w *world) quickstart(t *testing.T) {
	cmd := exec.CommandContext(limit(t), filepath.Join(stack.Root(t), "scripts/quickstart.sh"))
	cmd.Env = append(os.Environ(), "GRPC="+w.GRPC, "CLICKHOUSE="+w.ClickHouse, "KEY="+w.Key)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s\n%s", out, w.describe())
	require.NotContains(t, string(out), w.Key, "the key is not shown")
	t.Logf("%s", out)
	ids := passed.FindStringSubmatch(string(out))
	require.Len(t, ids, 3)

	history := w.SandboxEvents(t, ids[1])
	require.Equal(t, "SandboxRequested", history[0])
	require.Contains(t, history, "SandboxReady")
	require.Equal(t, []string{"SandboxDestroying", "SandboxDestroyed"}, history[len(history)-2:])
	require.NotContains(t, history, "SandboxFailed")
	row := w.Query(t, "SELECT event_type FROM agents.usage_events WHERE id = '"+ids[2]+"'")
	require.Equal(t, "exec_command", row)

	core := w.cluster.Client.CoreV1()
	_, err = core.Pods(system.Sandboxes).Get(limit(t), "sandbox-"+ids[1][:8], metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "destroyed is said when the pod is gone: %v", err)
	claim, err := core.PersistentVolumeClaims(system.Sandboxes).Get(limit(t), "workspace-"+ids[1][:8], metav1.GetOptions{})
	require.NoError(t, err, "its workspace is kept")
	after, err := time.Parse(time.RFC3339, claim.Annotations["compute.paper-board.io/delete-after"])
	require.NoError(t, err)
	require.WithinDuration(t, time.Now().Add(24*time.Hour), after, 10*time.Minute)
}

func (w *world) describe() string {
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	return w.install.Describe(ctx)
}

const (
	blockBytes  = 64 << 10
	outputBytes = 100 << 20
)

// writer writes blocks that each begin with their number, so that one that is missing, twice or elsewhere is seen.
const writer = `
import struct, sys
rest = bytes(range(256)) * 255 + bytes(248)
for n in range(1600):
    sys.stdout.buffer.write(struct.pack(">Q", n) + rest)
`

func (w *world) output(t *testing.T) {
	id := w.Ready(t, own)
	defer w.Destroy(t, id)
	want := sha256.New()
	var rest []byte
	for range 255 {
		for b := range 256 {
			rest = append(rest, byte(b))
		}
	}
	rest = append(rest, make([]byte, 248)...)
	require.Len(t, rest, blockBytes-8)
	for n := range outputBytes / blockBytes {
		want.Write(binary.BigEndian.AppendUint64(nil, uint64(n)))
		want.Write(rest)
	}
	begin := time.Now()
	r := w.Run(t, &computev1.ExecCommandRequest{SandboxId: id, Command: "python3", Args: []string{"-c", writer}, OutputLimitBytes: 2 * outputBytes})
	took := time.Since(begin)
	require.Zero(t, r.Completed.GetExitCode(), "%s", r.Stderr)
	require.Empty(t, r.Gaps)
	require.Len(t, r.Stdout, outputBytes)
	got := sha256.Sum256(r.Stdout)
	require.Equal(t, want.Sum(nil), got[:])
	require.Equal(t, got[:], r.Completed.GetStdout().GetSha256())
	t.Logf("100 MiB in %s, %.1f MiB/s", took.Round(time.Millisecond), 100/took.Seconds())
}

// atOnce is how many sandboxes are made side by side.
const atOnce = 50

func (w *world) many(t *testing.T) {
	begin := time.Now()
	ids := make([]string, atOnce)
	each := func(do func(i int)) {
		var all sync.WaitGroup
		for i := range ids {
			all.Go(func() { do(i) })
		}
		all.Wait()
	}
	each(func(i int) {
		var err error
		if ids[i], err = w.insist(limit(t), fmt.Sprintf("many-%d-%d", begin.UnixNano(), i)); err != nil {
			t.Errorf("create: %v", err)
		}
	})
	require.False(t, t.Failed(), "%s", w.describe())
	asked := time.Since(begin)
	said := make([]stack.Result, atOnce)
	each(func(i int) {
		ctx, stop := context.WithTimeout(context.Background(), 2*patience)
		defer stop()
		stream, err := w.API.ExecCommand(ctx, &computev1.ExecCommandRequest{SandboxId: ids[i], Command: "hostname"})
		if err == nil {
			err = said[i].Read(stream)
		}
		if err != nil {
			t.Errorf("sandbox %s: %v", ids[i], err)
		}
	})
	require.False(t, t.Failed(), "%s", w.describe())
	ready := time.Since(begin)
	for i, r := range said {
		require.Equal(t, "sandbox-"+ids[i][:8]+"\n", string(r.Stdout))
	}
	begin = time.Now()
	each(func(i int) {
		ctx, stop := context.WithTimeout(context.Background(), 2*patience)
		defer stop()
		err := again(ctx, func() error {
			_, err := w.API.DestroySandbox(ctx, &computev1.DestroySandboxRequest{SandboxId: ids[i]})
			return err
		})
		if err != nil {
			t.Errorf("destroy %s: %v", ids[i], err)
		}
	})
	require.False(t, t.Failed())
	pods, err := w.cluster.Client.CoreV1().Pods(system.Sandboxes).List(limit(t), metav1.ListOptions{})
	require.NoError(t, err)
	require.Empty(t, pods.Items, "one for each key, and none that nobody knows")
	t.Logf("%d sandboxes: accepted after %s, an exec in each has ended after %s, all destroyed in %s",
		atOnce, asked.Round(time.Millisecond), ready.Round(time.Millisecond), time.Since(begin).Round(time.Millisecond))
}

// insist makes a sandbox as clients do, whatever comes late: all its requests have one key.
func (w *world) insist(ctx context.Context, idempotency string) (id string, err error) {
	ctx = metadata.AppendToOutgoingContext(ctx, "idempotency-key", idempotency)
	err = again(ctx, func() error {
		res, err := w.API.CreateSandbox(ctx, &computev1.CreateSandboxRequest{TenantId: tenant, SessionId: "many", Image: stack.Image})
		id = res.GetSandboxId()
		return err
	})
	return id, err
}

// again asks once more while an answer does not come in time, until ctx ends.
func again(ctx context.Context, ask func() error) error {
	for {
		err := ask()
		if code := status.Code(err); code != codes.DeadlineExceeded && code != codes.Unavailable {
			return err
		}
		if pause.For(ctx, 100*time.Millisecond) != nil {
			return err
		}
	}
}

func (w *world) uninstall(t *testing.T) {
	core := w.cluster.Client.CoreV1()
	require.NoError(t, w.install.Uninstall(limit(t)))
	_, err := core.Namespaces().Get(limit(t), system.Sandboxes, metav1.GetOptions{})
	require.NoError(t, err, "the workspaces are kept")
	log, err := core.PersistentVolumeClaims(system.Namespace).List(limit(t), metav1.ListOptions{})
	require.NoError(t, err)
	require.NotEmpty(t, log.Items, "and the log")
	ours := metav1.ListOptions{LabelSelector: "app.kubernetes.io/part-of=sandtrail"}
	roles, err := w.cluster.Client.RbacV1().ClusterRoles().List(limit(t), ours)
	require.NoError(t, err)
	require.Empty(t, roles.Items)
	require.NoError(t, w.install.Remove(limit(t)))
}
