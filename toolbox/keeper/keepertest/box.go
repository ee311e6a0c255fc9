package keepertest

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/toolbox/cgroup"
	"github.com/sandtrail/sandtrail/toolbox/client"
	"github.com/sandtrail/sandtrail/toolbox/launch"
)

// Box is a running sandbox.
type Box struct {
	*client.Client
	Spec   launch.Spec
	Result launch.Result
	State  string
	// Log is what the keeper wrote to its log; read it after Wait.
	Log *bytes.Buffer
	cmd *exec.Cmd
	// ended closes when the keeper has ended.
	ended chan struct{}
}

// NewID makes a sandbox id.
func NewID() string {
	var b [16]byte
	_, _ = rand.Read(b[:])
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// Spec is a launch description with a workspace of 64 MiB and small limits.
func Spec(t testing.TB, state string) launch.Spec {
	t.Helper()
	id := NewID()
	runtimeID := "st" + strings.ReplaceAll(id, "-", "")
	image := filepath.Join(state, "workspaces", id+".img")
	require.NoError(t, os.MkdirAll(filepath.Dir(image), 0o755))
	f, err := os.Create(image)
	require.NoError(t, err)
	require.NoError(t, f.Truncate(256<<20))
	require.NoError(t, f.Close())
	run(t, exec.CommandContext(t.Context(), "mkfs.ext4", "-q", "-m", "0", image))
	return launch.Spec{
		SandboxID: id, RuntimeID: runtimeID, Hostname: "sandbox-" + id[:8], Dir: filepath.Join(state, "sandboxes", id),
		Runsc: Runsc(t), Toolbox: Toolbox(t), Rootfs: Rootfs(t), OverlayBytes: 64 << 20, Workspace: image, MountPath: "/workspace",
		ImageEnv: []string{"PATH=/bin"}, Env: map[string]string{"CANARY": "do-not-log-" + id}, UID: 1000, GID: 1000, HostIDBase: 100000,
		CPUMillis: 2000, MemoryBytes: 256 << 20, PIDs: 64, OpenFiles: 1024, MaxExecs: 16, OutputCap: 4 << 20, SpoolBytes: 1 << 20,
		Cgroup: "sandtrail-test/" + runtimeID,
	}
}

// Start starts a keeper; the test's end shuts it down if it still runs.
func Start(t testing.TB, change ...func(*launch.Spec)) *Box {
	t.Helper()
	state := t.TempDir()
	spec := Spec(t, state)
	for _, c := range change {
		c(&spec)
	}
	b := Launch(t, state, spec)
	require.True(t, b.Result.OK, "%+v\n%s", b.Result, b.Log)
	return b
}

// Launch starts a keeper and waits for its result, good or bad.
func Launch(t testing.TB, state string, spec launch.Spec) *Box {
	t.Helper()
	answer, out, err := os.Pipe()
	require.NoError(t, err)
	defer answer.Close()
	b := begin(t, state, spec, out)
	line, err := io.ReadAll(answer)
	require.NoError(t, err)
	if err := json.Unmarshal(line, &b.Result); err != nil {
		b.Wait(t)
		t.Fatalf("no result: %q\n%s", line, b.Log)
	}
	return b
}

// Orphan starts a keeper whose starter is gone before it can hear the result.
func Orphan(t testing.TB, state string, spec launch.Spec) *Box {
	t.Helper()
	answer, out, err := os.Pipe()
	require.NoError(t, err)
	require.NoError(t, answer.Close())
	return begin(t, state, spec, out)
}

// settle is done once, as a worker does it when it starts.
var settle = sync.OnceValue(cgroup.Settle)

// begin closes out.
func begin(t testing.TB, state string, spec launch.Spec, out *os.File) *Box {
	t.Helper()
	if err := settle(); !spec.Rootless {
		require.NoError(t, err)
	}
	b := &Box{Spec: spec, State: state, Log: &bytes.Buffer{}, ended: make(chan struct{})}
	input, err := json.Marshal(spec)
	require.NoError(t, err)
	b.cmd = exec.Command(spec.Toolbox, "keeper")
	b.cmd.Stdin = bytes.NewReader(input)
	b.cmd.Stdout, b.cmd.Stderr = out, b.Log
	b.cmd.SysProcAttr = launch.Attributes(spec.Rootless)
	require.NoError(t, b.cmd.Start())
	require.NoError(t, out.Close())
	go func() { _ = b.cmd.Wait(); close(b.ended) }()
	t.Cleanup(func() { b.stop(t) })
	b.Client = client.New(client.DirDialer(spec.Dir), "")
	return b
}

func (b *Box) stop(t testing.TB) {
	select {
	case <-b.ended:
		return
	default:
	}
	_ = b.cmd.Process.Signal(syscall.SIGTERM)
	b.Wait(t)
}

// Wait waits for the keeper's end.
func (b *Box) Wait(t testing.TB) {
	t.Helper()
	select {
	case <-b.ended:
	case <-time.After(30 * time.Second):
		_ = b.cmd.Process.Kill()
		t.Fatal("the keeper did not end")
	}
}

// PID is the keeper's process.
func (b *Box) PID() int { return b.cmd.Process.Pid }

// Outcome is what one exec made.
type Outcome struct {
	Stdout, Stderr string
	// Pieces are the data events in order.
	Pieces []string
	// Skipped bytes of both streams.
	Skipped uint64
	*toolboxv1.End
}

// Run starts a program and follows it to its end.
func (b *Box) Run(t testing.TB, argv ...string) Outcome {
	t.Helper()
	return b.Do(t, &toolboxv1.Start{Argv: argv})
}

// Sh runs a line of shell.
func (b *Box) Sh(t testing.TB, script string) Outcome {
	t.Helper()
	return b.Run(t, "sh", "-c", script)
}

// Do runs what r says; an empty exec id gets one.
func (b *Box) Do(t testing.TB, r *toolboxv1.Start) Outcome {
	t.Helper()
	if r.ExecId == "" {
		r.ExecId = NewID()
	}
	_, err := b.Client.Start(t.Context(), r)
	require.NoError(t, err)
	return b.Follow(t, r.ExecId, 0, 0)
}

// Follow reads output from the offsets on, to the end.
func (b *Box) Follow(t testing.TB, id string, stdout, stderr uint64) Outcome {
	t.Helper()
	stream, err := b.Attach(t.Context(), &toolboxv1.Attach{ExecId: id, StdoutOffset: stdout, StderrOffset: stderr})
	require.NoError(t, err)
	defer stream.Close()
	var o Outcome
	var out, errs bytes.Buffer
	for {
		e, err := stream.Recv()
		require.NotErrorIs(t, err, io.EOF, "no end")
		require.NoError(t, err)
		if s := e.GetSkip(); s != nil {
			o.Skipped += s.To - s.From
		}
		if d := e.GetData(); d != nil {
			o.Pieces = append(o.Pieces, string(d.Data))
			if d.Stream == 1 {
				out.Write(d.Data)
			} else {
				errs.Write(d.Data)
			}
		}
		if end := e.GetEnd(); end != nil {
			o.End = end
			o.Stdout, o.Stderr = out.String(), errs.String()
			return o
		}
	}
}
