package keeper

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/toolbox/changes"
	"github.com/sandtrail/sandtrail/toolbox/sentry"
	"github.com/sandtrail/sandtrail/toolbox/spool"
	"github.com/sandtrail/sandtrail/toolbox/task"
	"github.com/sandtrail/sandtrail/toolbox/terminal"
	"github.com/sandtrail/sandtrail/toolbox/watch"
)

// The reasons of an end, as in toolbox.v1.
const (
	reasonTimedOut    = task.TimedOut
	reasonCancelled   = task.Cancelled
	reasonStartFailed = task.StartFailed
	reasonOOM         = task.OOMKilled
	reasonDestroyed   = task.Destroyed
	reasonStopped     = task.Stopped
	reasonLost        = task.Lost
)

// firstTag is the group of the first exec. Each gets one of its own that its programs cannot leave.
const firstTag = 0x60000000

// program is one exec from its start until its end is forgotten.
type program struct {
	id      string
	tag     uint32
	dir     string
	spool   *spool.Spool
	readers *task.Readers
	out     [2]*task.Output
	in      *task.Input
	// terminal is nil where it runs on none.
	terminal *task.Terminal
	// outside is nil but for a watcher.
	outside *task.Outside
	account *account
	sights  *sights
	// timeout and outputCap are what was asked for; 0: none.
	timeout   time.Duration
	outputCap uint64
	started   time.Time
	// launched closes when the start has worked or failed; done when end is set.
	launched chan struct{}
	done     chan struct{}
	pid      int32
	end      *toolboxv1.End

	mu sync.Mutex
	// reason is why the tree is being ended; ending closes when none of it is left.
	reason string
	ending chan struct{}
	// over is the limit that was passed when the warden ended everything, tooLarge that it was the workspace's.
	over     string
	tooLarge bool
}

// launch makes the pipes and starts the program. Its failure is an End too.
func (k *Keeper) launch(p *program, r *toolboxv1.Start) {
	defer close(p.launched)
	err := k.execute(p, r)
	if err != nil {
		k.log.Info("exec not started", "exec", p.id, "cause", describe(err))
		if why, ok := refused(err); ok && why == sentry.NoProcesses {
			k.counted(int(k.spec.PIDs))
		}
		k.settle(p, startFailure(err, r.Argv[0], r.WorkingDir, k.lost()))
		return
	}
	go k.follow(p)
	if p.timeout > 0 {
		timer := time.AfterFunc(p.timeout, func() {
			k.endTree(p, reasonTimedOut, task.TimeoutGrace)
		})
		go func() { <-p.done; timer.Stop() }()
	}
	p.in.Feed(r.Stdin, !r.KeepStdin)
	p.readers.Started()
}

func (k *Keeper) execute(p *program, r *toolboxv1.Start) error {
	for i := range p.out {
		o, err := task.NewOutput(uint32(i+1), p.spool, &k.meter.pipedOut)
		if err != nil {
			return err
		}
		p.out[i] = o
		go o.Pump()
	}
	in, stdin, err := task.NewInput(&k.meter.pipedIn)
	if err != nil {
		return err
	}
	defer stdin.Close()
	p.in = in
	argv, more := r.Argv, []*os.File(nil)
	if helper, ok := watch.Argv(guestInit, argv); ok && r.Terminal == nil {
		if p.outside, err = task.NewOutside(); err != nil {
			return err
		}
		defer p.outside.Started()
		argv, more = watch.WithOutside(helper), p.outside.Files
	}
	if helper, ok := changes.Argv(guestInit, argv); ok && r.Terminal == nil {
		argv = helper
	}
	if r.Terminal != nil {
		if p.terminal, err = task.NewTerminal(r.Terminal); err != nil {
			return err
		}
		argv, more = terminal.Argv(guestInit, r.Argv), p.terminal.Files
	}
	pid, err := k.box.control.Execute(context.Background(), sentry.Program{
		Argv: argv, More: more, Env: task.Environment(k.spec.MountPath, k.spec.ImageEnv, k.spec.Env, r.Env), WorkingDir: k.workingDir(r.WorkingDir),
		UID: k.spec.UID, GID: k.spec.GID, Groups: []uint32{p.tag},
		Stdio: [3]*os.File{stdin, p.out[0].Write, p.out[1].Write},
	})
	if err == nil && p.terminal != nil {
		err = k.onTerminal(p.terminal, pid)
	}
	if err == nil {
		p.pid = pid
	}
	return err
}

// onTerminal waits until a helper has started its program. A helper that could not is seen off.
func (k *Keeper) onTerminal(t *task.Terminal, pid int32) error {
	err := t.Started()
	if err != nil {
		_ = k.box.control.Signal(context.Background(), pid, syscall.SIGKILL) // it has mostly ended by itself
		go func() { _, _ = k.box.control.Wait(context.Background(), pid) }()
	}
	return err
}

func (k *Keeper) workingDir(dir string) string {
	if path.IsAbs(dir) {
		return path.Clean(dir)
	}
	return path.Join(k.spec.MountPath, dir)
}

// follow waits for the leader's end.
func (k *Keeper) follow(p *program) {
	status, err := k.box.control.Wait(context.Background(), p.pid)
	end := &toolboxv1.End{WallTimeUs: uint64(time.Since(p.started).Microseconds())}
	if err != nil {
		// The connection ends a little before the process does.
		select {
		case <-k.box.gone:
		case <-time.After(5 * time.Second):
			k.log.Error("exec not followed", "exec", p.id, "cause", describe(err))
		}
		// Nothing exited here: 0 would read as success.
		end.ExitCode, end.Signal = 128+int32(syscall.SIGKILL), int32(syscall.SIGKILL)
		end.Reason = reasonLost
		if k.meter.oomKills() > p.sights.kills {
			end.Reason = reasonOOM
			end.Message = "the sandbox ran out of memory and ended"
		}
		if why := k.lost(); why == reasonDestroyed || why == reasonStopped {
			end.Reason, end.Message = why, ""
		}
		k.settle(p, end)
		return
	}
	k.classify(p, end, status)
	k.settle(p, end)
}

// classify says how the leader ended. What ended the tree wins over what the leader made of it.
func (k *Keeper) classify(p *program, end *toolboxv1.End, status syscall.WaitStatus) {
	task.SetStatus(end, status)
	if end.Signal == int32(syscall.SIGKILL) && k.meter.oomKills() > p.sights.kills {
		end.Reason, end.Message = reasonOOM, "out of memory"
	}
	p.mu.Lock()
	reason, ending := p.reason, p.ending
	if p.over != "" {
		end.Message = p.over
	}
	p.mu.Unlock()
	if reason != "" {
		end.Reason = reason
		<-ending
	}
}

// settle ends the output, measures, and lets everybody see the end.
func (k *Keeper) settle(p *program, end *toolboxv1.End) {
	task.Drain(p.spool, p.out, p.in)
	p.terminal.Close()
	p.outside.Close()
	end.Usage, end.UsageMethod = k.meter.end(p.account)
	// The end stays for long, this need not.
	p.out, p.account = [2]*task.Output{}, nil
	task.Close(end, p.spool, func(end *toolboxv1.End) []*commonv1.LimitHit { return k.limitsMet(p, end) })
	p.end = end
	p.readers.Arrive()
	close(p.done)
	k.ended(p)
}

// startFailure says why nothing ran, with the exit codes of a shell.
func startFailure(err error, name, dir, lost string) *toolboxv1.End {
	end := &toolboxv1.End{Reason: reasonStartFailed, ExitCode: 126}
	if len(name) > 128 {
		name = name[:128] + "…"
	}
	why, ok := refused(err)
	if !ok {
		end.Message = "the sandbox did not start the program"
		if lost != "" {
			return &toolboxv1.End{Reason: lost, ExitCode: 126}
		}
		return end
	}
	switch why {
	case sentry.NotFound:
		end.ExitCode = 127
		end.Message = fmt.Sprintf("%q: command not found", name)
	case sentry.NotExecutable:
		end.Message = fmt.Sprintf("%q: cannot be executed", name)
	case sentry.NoWorkingDir:
		end.Message = fmt.Sprintf("working directory %q does not exist", dir)
	case sentry.NoProcesses:
		end.Message = "the sandbox is at its limit of processes"
	default:
		end.Message = fmt.Sprintf("%q: could not be started", name)
	}
	return end
}

// refused is why a sandbox did not start a program; false: the sandbox itself is at fault.
func refused(err error) (sentry.Fault, bool) {
	var answered *sentry.Error
	var said terminal.StartError
	switch {
	case errors.As(err, &answered):
		return answered.Classify(), true
	case !errors.As(err, &said):
		return sentry.Other, false
	}
	switch said {
	case terminal.ErrNotFound:
		return sentry.NotFound, true
	case terminal.ErrNotExecutable:
		return sentry.NotExecutable, true
	case terminal.ErrNoProcesses:
		return sentry.NoProcesses, true
	default:
		return sentry.Other, true
	}
}

// describe is what may be logged of an error: the sentry's own text can hold names that a tenant chose.
func describe(err error) string {
	if why, ok := refused(err); ok {
		return fmt.Sprintf("refused by the sandbox (%d)", why)
	}
	return err.Error()
}

// execDir holds an exec's output while it is kept.
func (k *Keeper) execDir(id string) string { return filepath.Join(k.box.path("execs"), id) }
