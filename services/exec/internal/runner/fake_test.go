package runner

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

	"github.com/sandtrail/sandtrail/libs/sandbox"
	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/toolbox/server"
	"github.com/sandtrail/sandtrail/toolbox/spool"
	"github.com/sandtrail/sandtrail/toolbox/task"
	"github.com/sandtrail/sandtrail/toolbox/wire"
)

// program is what runs in the fake sandbox: it writes output until it returns its end. ctx ends when its tree is killed.
type program func(ctx context.Context, p *process) *toolboxv1.End

type process struct {
	start   *toolboxv1.Start
	spool   *spool.Spool
	began   time.Time
	cancel  context.CancelCauseFunc
	done    chan struct{}
	end     *toolboxv1.End
	forgets int
}

func (p *process) write(stream uint32, data []byte) { _ = p.spool.Append(stream, data) }

type killed struct{ reason string }

func (k killed) Error() string { return k.reason }

// keeper is a toolbox whose programs are functions, behind the real protocol. It outlives the services under test.
type keeper struct {
	server.Handler
	dir    string
	spools string
	// instance is another one of each.
	instance string
	program  program
	stop     context.CancelFunc
	served   chan struct{}

	// busy is how many Starts are refused for lack of a connection.
	busy atomic.Int32
	// starting is called before a program is started; may be nil.
	starting func()
	// listing is called before the execs are told; may be nil.
	listing func()

	mu     sync.Mutex
	execs  map[string]*process
	starts map[string]int
}

func startKeeper(t testing.TB, state, box string, prog program) *keeper {
	t.Helper()
	k := &keeper{
		dir: filepath.Join(state, "sandboxes", box), spools: t.TempDir(), instance: rand.Text(), program: prog, execs: map[string]*process{}, starts: map[string]int{},
	}
	require.NoError(t, os.MkdirAll(k.dir, 0o700))
	k.listen(t)
	t.Cleanup(k.die)
	return k
}

func (k *keeper) listen(t testing.TB) {
	l, err := server.Listen(k.dir)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan struct{})
	k.stop, k.served = cancel, served
	go func(l net.Listener) {
		defer close(served)
		_ = server.Serve(ctx, l, k, server.WithDrain(0))
	}(l)
}

// die ends the toolbox as kill -9 would: no end of any program is told.
func (k *keeper) die() {
	k.stop()
	<-k.served
	_ = os.Remove(filepath.Join(k.dir, server.Socket))
}

func (k *keeper) started(exec string) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.starts[exec]
}

func (k *keeper) find(exec string) (*process, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := k.execs[exec]
	if p == nil {
		return nil, wire.NewError("not_found", "exec_not_found", "there is no such exec")
	}
	return p, nil
}

func (k *keeper) Hello(context.Context, *toolboxv1.Hello) (*toolboxv1.HelloReply, error) {
	return &toolboxv1.HelloReply{Alive: true, Instance: k.instance}, nil
}

func (k *keeper) Start(_ context.Context, r *toolboxv1.Start) (*toolboxv1.StartReply, error) {
	if k.starting != nil {
		k.starting()
	}
	if err := task.CheckInstance(r, k.instance); err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if p := k.execs[r.GetExecId()]; p != nil {
		return &toolboxv1.StartReply{}, nil
	}
	if k.busy.Add(-1) >= 0 {
		return nil, wire.NewError("resource_exhausted", "quota", "too many connections to the sandbox")
	}
	if r.GetArgv()[0] == "missing" {
		return nil, wire.NewError("not_found", "command_not_found", "missing: command not found")
	}
	dir, err := os.MkdirTemp(k.spools, "spool")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	p := &process{start: r, spool: spool.New(spool.Options{Dir: dir, Cap: 64 << 20}), began: time.Now(), cancel: cancel, done: make(chan struct{})}
	k.execs[r.GetExecId()] = p
	k.starts[r.GetExecId()]++
	if ms := r.GetTimeoutMs(); ms > 0 {
		time.AfterFunc(time.Duration(ms)*time.Millisecond, func() { cancel(killed{sandbox.ReasonTimedOut}) })
	}
	go func() {
		defer close(p.done)
		p.end = k.program(ctx, p)
		if why := (killed{}); errors.As(context.Cause(ctx), &why) {
			p.end = &toolboxv1.End{Signal: 15, Reason: why.reason}
		}
		p.spool.End()
		p.end.Stdout, p.end.Stderr = p.spool.StreamEnd(spool.Stdout), p.spool.StreamEnd(spool.Stderr)
		p.end.WallTimeUs = uint64(time.Since(p.began).Microseconds())
		p.end.Usage = &commonv1.UsageMetrics{CpuMs: 7}
	}()
	return &toolboxv1.StartReply{Started: true}, nil
}

func (k *keeper) Attach(ctx context.Context, r *toolboxv1.Attach, send func(*toolboxv1.AttachEvent) error) error {
	p, err := k.find(r.GetExecId())
	if err != nil {
		return err
	}
	reader, err := p.spool.Reader(r.GetStdoutOffset(), r.GetStderrOffset())
	if err != nil {
		return err
	}
	defer reader.Close()
	buf := make([]byte, 64<<10)
	for {
		piece, err := reader.Next(ctx, buf)
		if errors.Is(err, io.EOF) {
			<-p.done
			return send(&toolboxv1.AttachEvent{Event: &toolboxv1.AttachEvent_End{End: p.end}})
		}
		if err != nil {
			return err
		}
		e := &toolboxv1.AttachEvent{Event: &toolboxv1.AttachEvent_Data{Data: &toolboxv1.Data{
			Stream: piece.Stream, Offset: piece.Offset, Data: piece.Data,
		}}}
		if piece.SkipTo > 0 {
			e.Event = &toolboxv1.AttachEvent_Skip{Skip: &toolboxv1.Skip{Stream: piece.Stream, From: piece.Offset, To: piece.SkipTo}}
		}
		if err := send(e); err != nil {
			return err
		}
	}
}

func (k *keeper) Signal(_ context.Context, r *toolboxv1.Signal) (*toolboxv1.SignalReply, error) {
	p, err := k.find(r.GetExecId())
	if err != nil {
		return nil, err
	}
	p.cancel(killed{r.GetReason()})
	return &toolboxv1.SignalReply{}, nil
}

func (k *keeper) List(context.Context, *toolboxv1.List) (*toolboxv1.ListReply, error) {
	if k.listing != nil {
		k.listing()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	reply := &toolboxv1.ListReply{Instance: k.instance}
	for id, p := range k.execs {
		s := &toolboxv1.ExecState{ExecId: id, State: "running"}
		select {
		case <-p.done:
			s.State, s.End = "ended", p.end
		default:
		}
		reply.Execs = append(reply.Execs, s)
	}
	return reply, nil
}

func (k *keeper) Forget(_ context.Context, r *toolboxv1.Forget) (*toolboxv1.ForgetReply, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if p := k.execs[r.GetExecId()]; p != nil {
		p.forgets++
	}
	return &toolboxv1.ForgetReply{}, nil
}
