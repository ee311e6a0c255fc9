package toolboxtest

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/toolbox/client"
)

// Run checks what every toolbox promises. dial connects to one whose sandbox is empty, has /bin/sh with seq and cat, and a
// workspace at /workspace. It leaves nothing running: its last call is a Shutdown.
func Run(t *testing.T, dial func(context.Context) (net.Conn, error)) {
	RunClient(t, client.New(dial, ""))
}

// RunClient is Run with a client.
func RunClient(t *testing.T, c *client.Client) {
	s := suite{c}
	t.Run("hello", s.hello)
	t.Run("output and exit code", s.output)
	t.Run("start once", s.startOnce)
	t.Run("start by one instance", s.startByInstance)
	t.Run("attach from offsets", s.offsets)
	t.Run("stdin", s.stdin)
	t.Run("unknown exec", s.unknown)
	t.Run("start failed", s.startFailed)
	t.Run("signal", s.signal)
	t.Run("tree", s.tree)
	t.Run("timeout", s.timeout)
	t.Run("over the cap", s.overCap)
	t.Run("list and forget", s.forget)
	t.Run("files", s.files)
	t.Run("leader's exit", s.leaderExit)
	t.Run("usage", s.usage)
	t.Run("shutdown", s.shutdown)
}

type suite struct{ *client.Client }

// NewID returns a random exec id.
func NewID() string {
	var b [16]byte
	rand.Read(b[:])
	return fmt.Sprintf("%x-%x-4%x-8%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])[:36]
}

func (s suite) context(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// sh starts a shell script and returns its exec id.
func (s suite) sh(t *testing.T, script string, change ...func(*toolboxv1.Start)) string {
	t.Helper()
	r := &toolboxv1.Start{ExecId: NewID(), Argv: []string{"/bin/sh", "-c", script}}
	for _, c := range change {
		c(r)
	}
	reply, err := s.Start(s.context(t), r)
	require.NoError(t, err)
	require.True(t, reply.Started)
	return r.ExecId
}

// collected is what one Attach gave.
type collected struct {
	stdout, stderr []byte
	skipped        uint64
	end            *toolboxv1.End
}

// collect attaches from the offsets and reads to the end.
func (s suite) collect(t *testing.T, id string, stdout, stderr uint64) collected {
	t.Helper()
	stream, err := s.Attach(s.context(t), &toolboxv1.Attach{ExecId: id, StdoutOffset: stdout, StderrOffset: stderr})
	require.NoError(t, err)
	defer stream.Close()
	var c collected
	at := map[uint32]uint64{1: stdout, 2: stderr}
	for c.end == nil {
		e, err := stream.Recv()
		require.NoError(t, err)
		switch {
		case e.GetData() != nil:
			d := e.GetData()
			require.Equal(t, at[d.Stream], d.Offset, "each byte once and in order")
			at[d.Stream] += uint64(len(d.Data))
			if d.Stream == 1 {
				c.stdout = append(c.stdout, d.Data...)
			} else {
				c.stderr = append(c.stderr, d.Data...)
			}
		case e.GetSkip() != nil:
			k := e.GetSkip()
			require.Equal(t, at[k.Stream], k.From)
			require.Greater(t, k.To, k.From)
			at[k.Stream] = k.To
			c.skipped += k.To - k.From
		default:
			c.end = e.GetEnd()
		}
	}
	return c
}

func (s suite) hello(t *testing.T) {
	r, err := s.Hello(s.context(t), &toolboxv1.Hello{})
	require.NoError(t, err)
	require.True(t, r.Alive)
	require.NotEmpty(t, r.SandboxId)
}

func (s suite) output(t *testing.T) {
	id := s.sh(t, `printf "out $X"; printf err >&2; pwd; exit 7`, func(r *toolboxv1.Start) {
		r.Env = map[string]string{"X": "a'b\nc"}
	})
	c := s.collect(t, id, 0, 0)
	require.True(t, strings.HasPrefix(string(c.stdout), "out a'b\nc"))
	require.Equal(t, "err", string(c.stderr))
	require.EqualValues(t, 7, c.end.ExitCode)
	require.Equal(t, "exited", c.end.Reason)
	require.EqualValues(t, len(c.stdout), c.end.Stdout.Bytes)
	require.EqualValues(t, 3, c.end.Stderr.Bytes)
	require.NotZero(t, c.end.WallTimeUs)
}

// A program that is to be started by another run of the sandbox is not, and its id stays free.
func (s suite) startByInstance(t *testing.T) {
	h, err := s.Hello(s.context(t), &toolboxv1.Hello{})
	require.NoError(t, err)
	require.NotEmpty(t, h.Instance)
	r := &toolboxv1.Start{ExecId: NewID(), Argv: []string{"/bin/sh", "-c", "exit 3"}, Instance: h.Instance + "x"}
	_, err = s.Start(s.context(t), r)
	var refused *client.Error
	require.ErrorAs(t, err, &refused)
	require.Equal(t, []string{"unavailable", "toolbox_unavailable"}, []string{refused.Code, refused.Reason})
	list, err := s.List(s.context(t), &toolboxv1.List{})
	require.NoError(t, err)
	require.Equal(t, h.Instance, list.Instance)
	for _, e := range list.Execs {
		require.NotEqual(t, r.ExecId, e.ExecId)
	}
	r.Instance = h.Instance
	_, err = s.Start(s.context(t), r)
	require.NoError(t, err)
	require.EqualValues(t, 3, s.collect(t, r.ExecId, 0, 0).end.ExitCode)
}

func (s suite) startOnce(t *testing.T) {
	r := &toolboxv1.Start{ExecId: NewID(), Argv: []string{"/bin/sh", "-c", "echo x >> /workspace/once-" + NewID()[:8] + "; echo ran"}}
	var started sync.Map
	var wg sync.WaitGroup
	ctx := s.context(t)
	for i := range 8 {
		wg.Go(func() {
			reply, err := s.Start(ctx, r)
			started.Store(i, err == nil && reply.Started)
		})
	}
	wg.Wait()
	var n int
	started.Range(func(_, v any) bool {
		if v.(bool) {
			n++
		}
		return true
	})
	require.Equal(t, 1, n)
	require.Equal(t, "ran\n", string(s.collect(t, r.ExecId, 0, 0).stdout))
	reply, err := s.Start(ctx, r)
	require.NoError(t, err)
	require.False(t, reply.Started)
	require.Equal(t, "ended", reply.State.State)
	require.EqualValues(t, 4, reply.State.StdoutBytes)
}

func (s suite) offsets(t *testing.T) {
	id := s.sh(t, "seq 1 100000; seq 1 1000 >&2")
	var want strings.Builder
	for i := range 100_000 {
		fmt.Fprintln(&want, i+1)
	}
	// From anywhere, also while it runs, also by several at once.
	var wg sync.WaitGroup
	for _, from := range []int{0, 1, 4096, 300_000, want.Len()} {
		wg.Go(func() {
			c := s.collect(t, id, uint64(from), 0)
			require.True(t, bytes.Equal([]byte(want.String()[from:]), c.stdout), "from %d", from)
			require.Len(t, c.stderr, 3893)
		})
	}
	wg.Wait()
}

func (s suite) stdin(t *testing.T) {
	id := s.sh(t, "cat", func(r *toolboxv1.Start) { r.Stdin = []byte("whole") })
	require.Equal(t, "whole", string(s.collect(t, id, 0, 0).stdout))

	id = s.sh(t, "cat", func(r *toolboxv1.Start) { r.KeepStdin = true })
	ctx := s.context(t)
	send := func(offset uint64, data string, eof bool) uint64 {
		r, err := s.Stdin(ctx, &toolboxv1.Stdin{ExecId: id, Offset: offset, Data: []byte(data), Eof: eof})
		require.NoError(t, err)
		return r.Offset
	}
	require.EqualValues(t, 3, send(0, "abc", false))
	require.EqualValues(t, 3, send(0, "abc", false), "sent again after a lost answer")
	require.EqualValues(t, 6, send(1, "bcdef", true))
	require.Equal(t, "abcdef", string(s.collect(t, id, 0, 0).stdout))
}

func (s suite) unknown(t *testing.T) {
	ctx, id := s.context(t), NewID()
	stream, err := s.Attach(ctx, &toolboxv1.Attach{ExecId: id})
	require.NoError(t, err)
	defer stream.Close()
	_, attach := stream.Recv()
	_, stdin := s.Stdin(ctx, &toolboxv1.Stdin{ExecId: id})
	_, signal := s.Signal(ctx, &toolboxv1.Signal{ExecId: id, Signal: 15})
	for _, err := range []error{attach, stdin, signal} {
		require.ErrorIs(t, err, &client.Error{Code: "not_found", Reason: "exec_not_found"})
	}
}

func (s suite) startFailed(t *testing.T) {
	id := NewID()
	reply, err := s.Start(s.context(t), &toolboxv1.Start{ExecId: id, Argv: []string{"/no/such/program"}})
	require.NoError(t, err)
	require.True(t, reply.Started)
	require.Equal(t, "start_failed", s.collect(t, id, 0, 0).end.Reason)
}

func (s suite) signal(t *testing.T) {
	id := s.sh(t, "trap 'echo caught; exit 3' USR1; echo ready; while :; do sleep 0.05; done")
	stream, err := s.Attach(s.context(t), &toolboxv1.Attach{ExecId: id})
	require.NoError(t, err)
	_, err = stream.Recv()
	require.NoError(t, err)
	stream.Close()
	_, err = s.Signal(s.context(t), &toolboxv1.Signal{ExecId: id, Signal: 10})
	require.NoError(t, err)
	c := s.collect(t, id, 0, 0)
	require.Equal(t, "ready\ncaught\n", string(c.stdout))
	require.EqualValues(t, 3, c.end.ExitCode)
}

func (s suite) tree(t *testing.T) {
	id := s.sh(t, "trap '' TERM; sleep 600 & echo ready; while :; do sleep 600; done")
	stream, err := s.Attach(s.context(t), &toolboxv1.Attach{ExecId: id})
	require.NoError(t, err)
	_, err = stream.Recv()
	require.NoError(t, err)
	stream.Close()
	_, err = s.Signal(s.context(t), &toolboxv1.Signal{ExecId: id, Tree: true, GraceMs: 100, Reason: "cancelled"})
	require.NoError(t, err)
	require.Equal(t, "cancelled", s.collect(t, id, 0, 0).end.Reason)
}

func (s suite) timeout(t *testing.T) {
	id := s.sh(t, "sleep 600", func(r *toolboxv1.Start) { r.TimeoutMs = 200 })
	require.Equal(t, "timed_out", s.collect(t, id, 0, 0).end.Reason)
}

// overCap has nobody reading while the program runs: head and tail are kept, and the gap is told.
func (s suite) overCap(t *testing.T) {
	const limit = 64 << 10
	id := s.sh(t, "seq 1 200000", func(r *toolboxv1.Start) { r.OutputCap = limit })
	require.Eventually(t, func() bool {
		l, err := s.List(s.context(t), &toolboxv1.List{})
		for _, e := range l.GetExecs() {
			if e.ExecId == id {
				return err == nil && e.State == "ended"
			}
		}
		return false
	}, 20*time.Second, 10*time.Millisecond)
	c := s.collect(t, id, 0, 0)
	require.EqualValues(t, 1_288_895, c.end.Stdout.Bytes)
	require.EqualValues(t, 1_288_895, uint64(len(c.stdout))+c.skipped)
	require.LessOrEqual(t, len(c.stdout), limit)
	require.True(t, strings.HasPrefix(string(c.stdout), "1\n2\n3\n"))
	require.True(t, strings.HasSuffix(string(c.stdout), "199999\n200000\n"))
	require.Equal(t, c.skipped, c.end.Stdout.DroppedBytes)
	require.Len(t, c.end.Stdout.Gaps, 1)
}

func (s suite) forget(t *testing.T) {
	id := s.sh(t, "echo x")
	s.collect(t, id, 0, 0)
	_, err := s.Forget(s.context(t), &toolboxv1.Forget{ExecId: id})
	require.NoError(t, err)
	reply, err := s.Start(s.context(t), &toolboxv1.Start{ExecId: id, Argv: []string{"/bin/sh", "-c", "echo again"}})
	require.NoError(t, err)
	require.False(t, reply.Started, "its end is remembered")
	require.NotNil(t, reply.State.End)
}

func (s suite) files(t *testing.T) {
	ctx, dir := s.context(t), "contract-"+NewID()[:8]
	_, err := s.WriteFile(ctx, &toolboxv1.WriteFile{Path: dir + "/f", Data: []byte("content"), Last: true})
	require.NoError(t, err)
	r, err := s.ReadFile(ctx, &toolboxv1.ReadFile{Path: "/workspace/" + dir + "/f", Offset: 3, MaxBytes: 2})
	require.NoError(t, err)
	require.Equal(t, "te", string(r.Data))
	require.EqualValues(t, 7, r.TotalSize)
	require.False(t, r.Eof)
	id := s.sh(t, "cat f; printf more >> f; ln -s /etc/passwd out", func(r *toolboxv1.Start) { r.WorkingDir = dir })
	c := s.collect(t, id, 0, 0)
	require.Equal(t, "content", string(c.stdout), "written from outside, read and changed inside: %s", c.stderr)
	r, err = s.ReadFile(ctx, &toolboxv1.ReadFile{Path: dir + "/f"})
	require.NoError(t, err)
	require.Equal(t, "contentmore", string(r.Data))
	require.True(t, r.Eof)
	l, err := s.ListFiles(ctx, &toolboxv1.ListFiles{Path: dir})
	require.NoError(t, err)
	require.Len(t, l.Entries, 2)
	require.Equal(t, dir+"/f", l.Entries[0].Path)
	_, err = s.ReadFile(ctx, &toolboxv1.ReadFile{Path: dir + "/out"})
	require.ErrorIs(t, err, &client.Error{Code: "permission_denied", Reason: "path_escapes"})
	st, err := s.StatFile(ctx, &toolboxv1.StatFile{Path: dir + "/f", Digest: true})
	require.NoError(t, err)
	require.EqualValues(t, 11, st.Size)
	require.Len(t, st.Sha256, 32)
	require.Equal(t, r.Version, st.Version)
	s.kept(t, dir)
	_, err = s.DeleteFile(ctx, &toolboxv1.DeleteFile{Path: dir})
	require.ErrorIs(t, err, &client.Error{Code: "failed_precondition", Reason: "path_not_empty"})
	_, err = s.DeleteFile(ctx, &toolboxv1.DeleteFile{Path: dir, Recursive: true})
	require.NoError(t, err)
	_, err = s.ReadFile(ctx, &toolboxv1.ReadFile{Path: dir + "/f"})
	require.ErrorIs(t, err, &client.Error{Code: "not_found", Reason: "path_not_found"})
}

// kept is what a file comes with beside its content, and what has none: as the program inside sees it.
func (s suite) kept(t *testing.T, dir string) {
	ctx, at := s.context(t), timestamppb.New(time.Unix(981_173_106, 0))
	half := len("#!/bin/sh\n")
	const script = "#!/bin/sh\necho ran"
	_, err := s.WriteFile(ctx, &toolboxv1.WriteFile{Path: dir + "/kept/run", UploadId: dir, Data: []byte(script[:half])})
	require.NoError(t, err)
	_, err = s.WriteFile(ctx, &toolboxv1.WriteFile{
		Path: dir + "/kept/run", UploadId: dir, Offset: int64(half), Data: []byte(script[half:]), Last: true, Mode: 0o750, ModifiedAt: at,
	})
	require.NoError(t, err)
	st, err := s.StatFile(ctx, &toolboxv1.StatFile{Path: dir + "/kept/run"})
	require.NoError(t, err)
	require.EqualValues(t, 0o750, st.Mode)
	require.Equal(t, at.AsTime(), st.ModifiedAt.AsTime())
	for _, r := range []*toolboxv1.MakeEntry{
		{Path: dir + "/kept/link", Symlink: "run"},
		{Path: dir + "/kept/hard", Hardlink: dir + "/kept/run"},
		{Path: dir + "/kept", Mode: 0o711, ModifiedAt: at},
	} {
		_, err = s.MakeEntry(ctx, r)
		require.NoError(t, err)
	}
	for _, target := range []string{"/etc/passwd", "../../out"} {
		_, err = s.MakeEntry(ctx, &toolboxv1.MakeEntry{Path: dir + "/escape", Symlink: target})
		require.ErrorIs(t, err, &client.Error{Code: "permission_denied", Reason: "path_escapes"})
	}
	id := s.sh(t, "./kept/link && ./kept/hard && stat -c '%a %Y' kept kept/run && [ ! -e escape ] && [ ! -L escape ]", func(r *toolboxv1.Start) { r.WorkingDir = dir })
	c := s.collect(t, id, 0, 0)
	require.Equal(t, "ran\nran\n711 981173106\n750 981173106\n", string(c.stdout), "%s", c.stderr)
}
