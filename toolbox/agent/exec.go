package agent

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/toolbox/spool"
	"github.com/sandtrail/sandtrail/toolbox/task"
	"github.com/sandtrail/sandtrail/toolbox/terminal"
	"github.com/sandtrail/sandtrail/toolbox/watch"
)

// program is one exec from its start until its end is forgotten.
type program struct {
	account
	id      string
	spool   *spool.Spool
	readers *task.Readers
	out     [2]*task.Output
	in      *task.Input
	// terminal is nil where it runs on none.
	terminal  *task.Terminal
	began     time.Time
	timeout   time.Duration
	outputCap uint64
	// ooms are those that the sandbox had had before.
	ooms uint64
	// launched closes when the start has worked or failed; done when end is set. pid and mark are set by then; no pid: it failed.
	launched chan struct{}
	done     chan struct{}
	pid      int
	mark     uint64
	end      *toolboxv1.End

	mu sync.Mutex
	// reason is why the tree is being ended; ending closes when none of it is left.
	reason string
	ending chan struct{}
}

func (p *program) started() bool {
	select {
	case <-p.launched:
		return p.pid != 0
	default:
		return false
	}
}

func (p *program) running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

func (p *program) state() *toolboxv1.ExecState {
	if p.running() {
		return task.State(p.id, p.began, p.spool, nil)
	}
	return task.State(p.id, p.began, p.spool, p.end)
}

// launch makes the pipes and starts the program. Its failure is an End too.
func (a *Agent) launch(p *program, r *toolboxv1.Start, env map[string]string) {
	defer close(p.launched)
	ended, err := a.execute(p, r, env)
	if err != nil {
		a.settle(p, startFailure(err, r.Argv[0], r.WorkingDir), nil)
		return
	}
	go a.follow(p, ended)
	if p.timeout > 0 {
		timer := time.AfterFunc(p.timeout, func() { a.endTree(p, task.TimedOut, task.TimeoutGrace) })
		go func() { <-p.done; timer.Stop() }()
	}
	p.in.Feed(r.Stdin, !r.KeepStdin)
	p.readers.Started()
	a.meter.begin()
}

// oomScore makes a kernel that runs out of memory choose programs before the agent, whose own stays as it is.
const oomScore = "1000"

func (a *Agent) execute(p *program, r *toolboxv1.Start, more map[string]string) (<-chan death, error) {
	env := task.Environment(a.o.MountPath, a.o.Env, more, r.Env)
	dir := a.workingDir(r.WorkingDir)
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return nil, errNoWorkingDir
	}
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	argv, helps := watch.Argv(program, r.Argv)
	if !helps {
		if program, err = lookPath(r.Argv[0], dir, env); err != nil {
			return nil, err
		}
	}
	for i := range p.out {
		o, err := task.NewOutput(uint32(i+1), p.spool, &p.pipedOut) //nolint:gosec // 1 or 2
		if err != nil {
			return nil, err
		}
		p.out[i] = o
		go o.Pump()
	}
	in, stdin, err := task.NewInput(&p.pipedIn)
	if err != nil {
		return nil, err
	}
	defer stdin.Close()
	p.in = in
	files := []uintptr{stdin.Fd(), p.out[0].Write.Fd(), p.out[1].Write.Fd()}
	if r.Terminal != nil {
		if p.terminal, err = task.NewTerminal(r.Terminal); err != nil {
			return nil, err
		}
		if program, err = os.Executable(); err != nil {
			return nil, err
		}
		argv = terminal.Argv(program, r.Argv)
		for _, f := range p.terminal.Files {
			files = append(files, f.Fd())
		}
	}
	pid, mark, ended, err := a.children.start(program, argv, &syscall.ProcAttr{
		Dir: dir, Env: env, Files: files, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return nil, err
	}
	if p.terminal != nil {
		if err := p.terminal.Started(); err != nil {
			_ = a.children.signal(pid, syscall.SIGKILL) // it has mostly ended by itself
			return nil, err
		}
	}
	p.pid, p.mark = pid, mark
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte(oomScore), 0)
	return ended, nil
}

func (a *Agent) workingDir(dir string) string {
	if !path.IsAbs(dir) {
		return filepath.Join(a.o.Workspace, dir)
	}
	if rest, ok := strings.CutPrefix(path.Clean(dir)+"/", a.o.MountPath+"/"); ok {
		return filepath.Join(a.o.Workspace, rest)
	}
	return path.Clean(dir)
}

var (
	errNoWorkingDir  = errors.New("no such working directory")
	errNotFound      = errors.New("command not found")
	errNotExecutable = errors.New("cannot be executed")
)

// lookPath finds a program as a shell would in that directory and environment.
func lookPath(name, dir string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		if !path.IsAbs(name) {
			name = filepath.Join(dir, name)
		}
		return name, executable(name)
	}
	result := errNotFound
	for _, kv := range env {
		list, ok := strings.CutPrefix(kv, "PATH=")
		if !ok {
			continue
		}
		for _, in := range filepath.SplitList(list) {
			if !path.IsAbs(in) {
				in = filepath.Join(dir, in)
			}
			full := filepath.Join(in, name)
			switch err := executable(full); {
			case err == nil:
				return full, nil
			case errors.Is(err, errNotExecutable):
				result = err
			}
		}
	}
	return "", result
}

func executable(path string) error {
	const execute = 1
	switch info, err := os.Stat(path); {
	case err != nil:
		return errNotFound
	case info.IsDir(), syscall.Access(path, execute) != nil:
		return errNotExecutable
	}
	return nil
}

// startFailure says why nothing ran, with the exit codes of a shell.
func startFailure(err error, name, dir string) *toolboxv1.End {
	end := &toolboxv1.End{Reason: task.StartFailed, ExitCode: 126}
	if len(name) > 128 {
		name = name[:128] + "…"
	}
	switch {
	case errors.Is(err, errNotFound), errors.Is(err, terminal.ErrNotFound):
		end.ExitCode = 127
		end.Message = fmt.Sprintf("%q: command not found", name)
	case errors.Is(err, errNoWorkingDir):
		end.Message = fmt.Sprintf("working directory %q does not exist", dir)
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.ENOMEM), errors.Is(err, terminal.ErrNoProcesses):
		end.Message = "the sandbox is at its limit of processes"
	default:
		end.Message = fmt.Sprintf("%q: cannot be executed", name)
	}
	return end
}

// follow waits for the leader's end.
func (a *Agent) follow(p *program, ended <-chan death) {
	<-p.launched
	d := <-ended
	end := &toolboxv1.End{WallTimeUs: uint64(time.Since(p.began).Microseconds())} //nolint:gosec // not negative
	task.SetStatus(end, d.status)
	p.mu.Lock()
	reason, ending := p.reason, p.ending
	p.mu.Unlock()
	if reason != "" {
		// What ended the tree wins over what the leader made of it.
		end.Reason = reason
		if reason == task.OOMKilled {
			end.Message = "out of memory"
		}
		<-ending
	}
	a.settle(p, end, &d)
}

// settle ends the output, measures, and lets everybody see the end.
func (a *Agent) settle(p *program, end *toolboxv1.End, d *death) {
	task.Drain(p.spool, p.out, p.in)
	p.terminal.Close()
	if d != nil {
		end.Usage, end.UsageMethod = a.used(p, d.used), method
	}
	p.out = [2]*task.Output{}
	task.Close(end, p.spool, func(end *toolboxv1.End) []*commonv1.LimitHit { return a.limitsMet(p, end) })
	p.end = end
	p.readers.Arrive()
	close(p.done)
	a.ended(p)
}

// used is what the leader, its dead orphans and what it leaves behind have used.
func (a *Agent) used(p *program, leader spent) *commonv1.UsageMetrics {
	leader.add(a.children.forget(p.mark))
	var living []process
	if a.children.left() {
		if o, err := a.census(); err == nil {
			living = o.of[p]
		}
	}
	return p.total(leader, living)
}

func (a *Agent) limitsMet(p *program, end *toolboxv1.End) []*commonv1.LimitHit {
	var hits []*commonv1.LimitHit
	if n := a.meter.oomKills() - p.ooms; n > 0 {
		hits = append(hits, &commonv1.LimitHit{
			Limit: "memory", Source: "seen", Value: a.o.MemoryBytes, Amount: n, Message: "the sandbox had used its memory, and its largest command was ended",
		})
	}
	if n := end.GetStdout().GetDroppedBytes() + end.GetStderr().GetDroppedBytes(); n > 0 {
		hits = append(hits, &commonv1.LimitHit{
			Limit: "output", Source: "seen", Value: p.outputCap, Amount: n,
			Message: fmt.Sprintf("%d bytes of output were dropped: of each stream the beginning and the end are kept, %d bytes together", n, p.outputCap),
		})
	}
	if end.GetReason() == task.TimedOut && p.timeout > 0 {
		hits = append(hits, &commonv1.LimitHit{
			Limit: task.TimeLimit, Source: "seen", Value: uint64(p.timeout.Milliseconds()), Message: fmt.Sprintf("its time of %s was over", p.timeout), //nolint:gosec // not negative
		})
	}
	return hits
}
