package toolboxtest

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/toolbox/spool"
	"github.com/sandtrail/sandtrail/toolbox/wire"
)

// process is one program of a Fake, in a process group of its own.
type process struct {
	request *toolboxv1.Start
	spool   *spool.Spool
	cmd     *exec.Cmd
	ended   chan struct{}

	mu      sync.Mutex
	started time.Time
	stdin   io.WriteCloser
	taken   uint64
	reason  string
	end     *toolboxv1.End
	// terminal is the size of the one that it asked for.
	terminal *commonv1.TerminalSize
}

func newProcess(r *toolboxv1.Start, workspace string, s *spool.Spool) *process {
	cmd := exec.Command(r.Argv[0], r.Argv[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// A child that holds the pipes keeps the end from coming only this long.
	cmd.WaitDelay = 500 * time.Millisecond
	cmd.Env = os.Environ()
	for k, v := range r.Env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	cmd.Dir = filepath.Join(workspace, strings.TrimPrefix(r.WorkingDir, "/workspace"))
	if strings.HasPrefix(r.WorkingDir, "/") && !strings.HasPrefix(r.WorkingDir, "/workspace") {
		cmd.Dir = r.WorkingDir
	}
	p := &process{request: r, spool: s, cmd: cmd, ended: make(chan struct{}), started: time.Now(), terminal: r.Terminal}
	cmd.Stdout = output{s, spool.Stdout}
	cmd.Stderr = output{s, spool.Stderr}
	return p
}

// output writes one stream into the spool.
type output struct {
	spool  *spool.Spool
	stream uint32
}

func (o output) Write(b []byte) (int, error) {
	if err := o.spool.Append(o.stream, b); err != nil {
		return 0, err
	}
	return len(b), nil
}

// start runs the program. One that cannot be started ends at once with start_failed.
func (p *process) start() {
	stdin, err := p.cmd.StdinPipe()
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		p.finish(&toolboxv1.End{Reason: "start_failed", Message: "the program cannot be started", ExitCode: 127})
		return
	}
	p.stdin = stdin
	if !p.request.KeepStdin {
		go func() {
			stdin.Write(p.request.Stdin)
			stdin.Close()
		}()
	} else {
		stdin.Write(p.request.Stdin)
		p.taken = uint64(len(p.request.Stdin))
	}
	if d := p.request.TimeoutMs; d > 0 {
		t := time.AfterFunc(time.Duration(d)*time.Millisecond, func() { p.kill("timed_out") })
		go func() { <-p.ended; t.Stop() }()
	}
	go p.wait()
}

func (p *process) wait() {
	p.cmd.Wait()
	end := &toolboxv1.End{Reason: "exited", ExitCode: int32(p.cmd.ProcessState.ExitCode())}
	if st, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && st.Signaled() {
		end.Reason, end.Signal, end.ExitCode = "signaled", int32(st.Signal()), 128+int32(st.Signal())
	}
	p.finish(end)
}

func (p *process) finish(end *toolboxv1.End) {
	p.spool.End()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reason != "" {
		end.Reason = p.reason
	}
	end.WallTimeUs = uint64(time.Since(p.started).Microseconds())
	end.Usage, end.UsageMethod = &commonv1.UsageMetrics{}, "fake"
	end.EndedAt = timestamppb.Now()
	end.Stdout, end.Stderr = p.spool.StreamEnd(spool.Stdout), p.spool.StreamEnd(spool.Stderr)
	p.end = end
	close(p.ended)
}

func (p *process) state() *toolboxv1.ExecState {
	stdout, stderr := p.spool.Bytes()
	p.mu.Lock()
	defer p.mu.Unlock()
	s := &toolboxv1.ExecState{
		ExecId: p.request.ExecId, State: "running", StdoutBytes: stdout, StderrBytes: stderr,
		StartedAt: timestamppb.New(p.started), End: p.end,
	}
	if p.end != nil {
		s.State = "ended"
	}
	return s
}

// kill ends the whole group; the first reason stays.
func (p *process) kill(reason string) {
	p.signal(&toolboxv1.Signal{Signal: int32(syscall.SIGKILL), Tree: true, Reason: reason})
}

func (p *process) signal(r *toolboxv1.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.end != nil || p.cmd.Process == nil {
		return
	}
	pid := p.cmd.Process.Pid
	if !r.Tree {
		p.cmd.Process.Signal(syscall.Signal(r.Signal))
		return
	}
	if p.reason == "" {
		p.reason = r.Reason
	}
	p.spool.Release()
	if r.GraceMs == 0 {
		syscall.Kill(-pid, syscall.SIGKILL)
		return
	}
	syscall.Kill(-pid, syscall.SIGTERM)
	go func() {
		select {
		case <-p.ended:
		case <-time.After(time.Duration(r.GraceMs) * time.Millisecond):
		}
		syscall.Kill(-pid, syscall.SIGKILL)
	}()
}

func (p *process) writeStdin(r *toolboxv1.Stdin) (*toolboxv1.StdinReply, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.end != nil || !p.request.KeepStdin {
		return nil, wire.NewError("failed_precondition", "illegal_state", "standard input is closed")
	}
	if r.Offset > p.taken {
		return nil, wire.NewError("invalid_argument", "validation", "bytes before the offset are missing")
	}
	if known := p.taken - r.Offset; known < uint64(len(r.Data)) {
		n, err := p.stdin.Write(r.Data[known:])
		p.taken += uint64(n)
		if err != nil {
			return nil, wire.NewError("failed_precondition", "illegal_state", "standard input is closed")
		}
	}
	if r.Eof {
		p.stdin.Close()
	}
	return &toolboxv1.StdinReply{Offset: p.taken}, nil
}

func (p *process) attach(ctx context.Context, r *toolboxv1.Attach, send func(*toolboxv1.AttachEvent) error) error {
	reader, err := p.spool.Reader(r.StdoutOffset, r.StderrOffset)
	if errors.Is(err, fs.ErrClosed) {
		return wire.NewError("failed_precondition", "cursor_expired", "the output was forgotten")
	}
	if err != nil {
		return err
	}
	defer reader.Close()
	buf := make([]byte, 32<<10)
	for {
		piece, err := reader.Next(ctx, buf)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		e := &toolboxv1.AttachEvent{Event: &toolboxv1.AttachEvent_Data{Data: &toolboxv1.Data{
			Stream: piece.Stream, Offset: piece.Offset, Data: piece.Data,
		}}}
		if len(piece.Data) == 0 {
			e.Event = &toolboxv1.AttachEvent_Skip{Skip: &toolboxv1.Skip{Stream: piece.Stream, From: piece.Offset, To: piece.SkipTo}}
		}
		if err := send(e); err != nil {
			return err
		}
	}
	select {
	case <-p.ended:
	case <-ctx.Done():
		return ctx.Err()
	}
	return send(&toolboxv1.AttachEvent{Event: &toolboxv1.AttachEvent_End{End: p.state().End}})
}
