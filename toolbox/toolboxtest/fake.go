// Package toolboxtest has the contract that every toolbox keeps, as a test suite, and a Fake to make faults happen in tests of
// the services that call one.
package toolboxtest

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/toolbox/client"
	"github.com/sandtrail/sandtrail/toolbox/connect"
	"github.com/sandtrail/sandtrail/toolbox/files"
	"github.com/sandtrail/sandtrail/toolbox/server"
	"github.com/sandtrail/sandtrail/toolbox/spool"
	"github.com/sandtrail/sandtrail/toolbox/task"
	"github.com/sandtrail/sandtrail/toolbox/wire"
)

// Fake is a toolbox whose programs run on this machine without any isolation: for argv of the test's own only. It serves
// STATE/sandboxes/<id>/keeper.sock like a keeper.
type Fake struct {
	// Door is where programs would find their way out.
	Door connect.Door

	// StateDir and SandboxID are what client.KeeperDialer wants. Workspace is the directory that programs see as their own.
	StateDir, SandboxID, Workspace string
	// OutputCap and Hold are those of its spools.
	OutputCap, Hold uint64

	files    *files.Files
	started  time.Time
	instance string
	stop     context.CancelFunc
	served   chan struct{}

	mu    sync.Mutex
	execs map[string]*process
	down  bool

	starts  atomic.Int64
	cut     atomic.Int64
	refuse  atomic.Bool
	delayNS atomic.Int64
}

var _ server.Handler = (*Fake)(nil)

// NewFake serves a fake until the test ends.
func NewFake(t testing.TB, sandboxID string) *Fake {
	t.Helper()
	f := &Fake{
		StateDir: t.TempDir(), SandboxID: sandboxID, Workspace: t.TempDir(), started: time.Now(), instance: rand.Text(),
		execs: map[string]*process{}, served: make(chan struct{}),
	}
	var err error
	f.files, err = files.Open(files.Options{Dir: f.Workspace, MountPath: "/workspace"})
	require.NoError(t, err)
	dir := filepath.Join(f.StateDir, "sandboxes", sandboxID)
	require.NoError(t, os.MkdirAll(dir, 0o700))
	l, err := server.Listen(dir)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	f.stop = stop
	go func() {
		defer close(f.served)
		server.Serve(ctx, &faultyListener{l, f}, f, server.WithDrain(0))
	}()
	t.Cleanup(func() {
		f.Die()
		f.files.Close()
	})
	return f
}

// Dial connects to the fake.
func (f *Fake) Dial(ctx context.Context) (net.Conn, error) {
	return client.KeeperDialer(f.StateDir, f.SandboxID)(ctx)
}

// Starts is how many programs were started.
func (f *Fake) Starts() int { return int(f.starts.Load()) }

// CutAfter cuts each connection made from now on once it has sent n bytes; 0: no more.
func (f *Fake) CutAfter(n int64) { f.cut.Store(n) }

// Refuse closes new connections at once.
func (f *Fake) Refuse(on bool) { f.refuse.Store(on) }

// Delay makes each call wait before it is handled.
func (f *Fake) Delay(d time.Duration) { f.delayNS.Store(int64(d)) }

// Die ends the fake as a killed keeper ends: connections are cut, programs die, nobody answers any more.
func (f *Fake) Die() {
	f.mu.Lock()
	f.down = true
	f.mu.Unlock()
	// Connections first: who is attached must not hear of an end that a killed keeper could not tell.
	f.stop()
	<-f.served
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.execs {
		p.kill("sandbox_lost")
	}
}

// faultyListener hands out connections that break as the switches say.
type faultyListener struct {
	net.Listener
	fake *Fake
}

func (l *faultyListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.fake.refuse.Load() {
			conn.Close()
			continue
		}
		if n := l.fake.cut.Load(); n > 0 {
			return &cutConn{Conn: conn, left: n}, nil
		}
		return conn, nil
	}
}

// cutConn closes once left bytes were written. One goroutine writes.
type cutConn struct {
	net.Conn
	left int64
}

var errCut = errors.New("connection cut by the test")

func (c *cutConn) Write(b []byte) (int, error) {
	if int64(len(b)) <= c.left {
		n, err := c.Conn.Write(b)
		c.left -= int64(n)
		return n, err
	}
	n, _ := c.Conn.Write(b[:c.left])
	c.left = 0
	c.Conn.Close()
	return n, errCut
}

func (f *Fake) delay(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Duration(f.delayNS.Load())):
		return nil
	}
}

func (f *Fake) exec(ctx context.Context, id string) (*process, error) {
	if err := f.delay(ctx); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.execs[id]
	if p == nil {
		return nil, wire.NewError("not_found", "exec_not_found", "no such exec")
	}
	return p, nil
}

// Hello implements server.Handler, as do the methods below.
func (f *Fake) Hello(ctx context.Context, _ *toolboxv1.Hello) (*toolboxv1.HelloReply, error) {
	if err := f.delay(ctx); err != nil {
		return nil, err
	}
	r := &toolboxv1.HelloReply{SandboxId: f.SandboxID, Version: "fake", Alive: true, StartedAt: timestamppb.New(f.started), Instance: f.instance}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.execs {
		if p.state().State == "running" {
			r.Running++
		}
	}
	return r, nil
}

func (f *Fake) Start(ctx context.Context, r *toolboxv1.Start) (*toolboxv1.StartReply, error) {
	if err := f.delay(ctx); err != nil {
		return nil, err
	}
	if r.ExecId == "" || len(r.Argv) == 0 {
		return nil, wire.NewError("invalid_argument", "validation", "exec_id and argv are needed")
	}
	if err := task.CheckInstance(r, f.instance); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		return nil, wire.NewError("unavailable", "sandbox_lost", "the sandbox has ended")
	}
	if p := f.execs[r.ExecId]; p != nil {
		return &toolboxv1.StartReply{State: p.state()}, nil
	}
	dir := filepath.Join(f.StateDir, "sandboxes", f.SandboxID, "spool-"+filepath.Base(r.ExecId))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	capacity := f.OutputCap
	if r.OutputCap > 0 {
		capacity = r.OutputCap
	}
	p := newProcess(r, f.Workspace, spool.New(spool.Options{Dir: dir, Cap: capacity, Hold: f.Hold}))
	f.execs[r.ExecId] = p
	f.starts.Add(1)
	p.start()
	return &toolboxv1.StartReply{Started: true, State: p.state()}, nil
}

func (f *Fake) Attach(ctx context.Context, r *toolboxv1.Attach, send func(*toolboxv1.AttachEvent) error) error {
	p, err := f.exec(ctx, r.ExecId)
	if err != nil {
		return err
	}
	return p.attach(ctx, r, send)
}

func (f *Fake) Stdin(ctx context.Context, r *toolboxv1.Stdin) (*toolboxv1.StdinReply, error) {
	p, err := f.exec(ctx, r.ExecId)
	if err != nil {
		return nil, err
	}
	return p.writeStdin(r)
}

func (f *Fake) Signal(ctx context.Context, r *toolboxv1.Signal) (*toolboxv1.SignalReply, error) {
	p, err := f.exec(ctx, r.ExecId)
	if err != nil {
		return nil, err
	}
	p.signal(r)
	return &toolboxv1.SignalReply{}, nil
}

// Resize checks the call as a toolbox does. A fake has no terminals: programs that want one run on pipes.
func (f *Fake) Resize(ctx context.Context, r *toolboxv1.Resize) (*toolboxv1.ResizeReply, error) {
	p, err := f.exec(ctx, r.ExecId)
	if err != nil {
		return nil, err
	}
	if err := task.CheckTerminal(r.Size); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.terminal == nil || p.end != nil || r.Size == nil {
		return (*task.Terminal)(nil).Resize(r)
	}
	p.terminal = r.Size
	return &toolboxv1.ResizeReply{}, nil
}

// TerminalSize is the size that the terminal of an exec was given last; nil without one.
func (f *Fake) TerminalSize(id string) *commonv1.TerminalSize {
	f.mu.Lock()
	p := f.execs[id]
	f.mu.Unlock()
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.terminal
}

func (f *Fake) List(ctx context.Context, _ *toolboxv1.List) (*toolboxv1.ListReply, error) {
	if err := f.delay(ctx); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	r := &toolboxv1.ListReply{Instance: f.instance}
	for _, p := range f.execs {
		r.Execs = append(r.Execs, p.state())
	}
	return r, nil
}

func (f *Fake) Usage(ctx context.Context, _ *toolboxv1.Usage) (*toolboxv1.UsageReply, error) {
	return &toolboxv1.UsageReply{UptimeMs: uint64(time.Since(f.started).Milliseconds()), Method: "fake"}, f.delay(ctx)
}

func (f *Fake) ReadFile(ctx context.Context, r *toolboxv1.ReadFile) (*toolboxv1.ReadFileReply, error) {
	if err := f.delay(ctx); err != nil {
		return nil, err
	}
	return f.files.Read(r)
}

func (f *Fake) WriteFile(ctx context.Context, r *toolboxv1.WriteFile) (*toolboxv1.WriteFileReply, error) {
	if err := f.delay(ctx); err != nil {
		return nil, err
	}
	return f.files.Write(r)
}

func (f *Fake) ListFiles(ctx context.Context, r *toolboxv1.ListFiles) (*toolboxv1.ListFilesReply, error) {
	if err := f.delay(ctx); err != nil {
		return nil, err
	}
	return f.files.List(r)
}

func (f *Fake) StatFile(ctx context.Context, r *toolboxv1.StatFile) (*toolboxv1.StatFileReply, error) {
	if err := f.delay(ctx); err != nil {
		return nil, err
	}
	return f.files.Stat(r)
}

func (f *Fake) DeleteFile(ctx context.Context, r *toolboxv1.DeleteFile) (*toolboxv1.DeleteFileReply, error) {
	if err := f.delay(ctx); err != nil {
		return nil, err
	}
	return f.files.Delete(r)
}

func (f *Fake) MakeEntry(ctx context.Context, r *toolboxv1.MakeEntry) (*toolboxv1.MakeEntryReply, error) {
	if err := f.delay(ctx); err != nil {
		return nil, err
	}
	return f.files.Make(r)
}

func (f *Fake) Shutdown(ctx context.Context, r *toolboxv1.Shutdown) (*toolboxv1.ShutdownReply, error) {
	if err := f.delay(ctx); err != nil {
		return nil, err
	}
	f.mu.Lock()
	f.down = true
	for _, p := range f.execs {
		p.kill("sandbox_destroyed")
	}
	f.mu.Unlock()
	return &toolboxv1.ShutdownReply{UptimeMs: uint64(time.Since(f.started).Milliseconds())}, nil
}

func (f *Fake) Forget(ctx context.Context, r *toolboxv1.Forget) (*toolboxv1.ForgetReply, error) {
	p, err := f.exec(ctx, r.ExecId)
	if err != nil {
		return nil, err
	}
	if p.state().State != "ended" {
		return nil, wire.NewError("failed_precondition", "illegal_state", "the exec is running")
	}
	return &toolboxv1.ForgetReply{}, p.spool.Remove()
}

func (f *Fake) Configure(ctx context.Context, _ *toolboxv1.Configure) (*toolboxv1.ConfigureReply, error) {
	if err := f.delay(ctx); err != nil {
		return nil, err
	}
	return nil, wire.NewError("failed_precondition", "illegal_state", "the sandbox is configured by its start")
}

// Connect dials this machine's own port, or waits at the fake's own door.
func (f *Fake) Connect(ctx context.Context, r *toolboxv1.Connect) (io.ReadWriteCloser, error) {
	if err := f.delay(ctx); err != nil {
		return nil, err
	}
	if r.GetOutgoing() {
		return f.Door.Accept(ctx)
	}
	return connect.Dial(ctx, r.GetPort())
}
