package rig

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/sandtrail/sandtrail/tests/e2e/chaos/skew"
)

// restartPause is what the supervisor waits before it starts a process again that has ended.
const restartPause = 200 * time.Millisecond

// Process is a program under a supervisor: one that ends is started again.
type Process struct {
	Name string
	// Clock is the wall clock of this process alone; nil where it goes by the machine's.
	Clock *skew.Clock

	command func() *exec.Cmd
	log     *os.File

	mu       sync.Mutex
	changed  *sync.Cond
	cmd      *exec.Cmd
	running  bool
	down     bool // kept down by a fault
	stopping bool
	starts   int
	crashes  []string
	done     chan struct{}
}

func supervise(name, logFile string, clock *skew.Clock, command func() *exec.Cmd) (*Process, error) {
	log, err := os.OpenFile(logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("supervise %s: %w", name, err)
	}
	p := &Process{Name: name, Clock: clock, command: command, log: log, done: make(chan struct{})}
	p.changed = sync.NewCond(&p.mu)
	go p.loop()
	return p, nil
}

func (p *Process) loop() {
	defer close(p.done)
	defer p.log.Close()
	for {
		cmd, stdin, err := p.start()
		if cmd == nil && err == nil {
			return
		}
		if err == nil {
			err = cmd.Wait()
			_ = stdin.Close()
		}
		p.ended(err)
		pause := time.NewTimer(restartPause)
		<-pause.C
	}
}

// start waits until it may run and starts it; nothing and no error once it is to stop.
func (p *Process) start() (*exec.Cmd, *os.File, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.down && !p.stopping {
		p.changed.Wait()
	}
	if p.stopping {
		return nil, nil, nil
	}
	cmd := p.command()
	cmd.Stdout, cmd.Stderr = p.log, p.log
	// A process of its own group: an interrupt from the terminal is for the harness, which ends the others in order. They do not
	// outlive it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	defer r.Close()
	cmd.Stdin = r
	start := cmd.Start
	if p.Clock != nil {
		start = func() error { return p.Clock.Start(cmd) }
	}
	if err := start(); err != nil {
		_ = w.Close()
		p.crashes = append(p.crashes, err.Error())
		return nil, nil, err
	}
	p.cmd, p.running = cmd, true
	p.starts++
	p.changed.Broadcast()
	return cmd, w, nil
}

func (p *Process) ended(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running && !p.down && !p.stopping {
		p.crashes = append(p.crashes, fmt.Sprintf("%v at %s", err, time.Now().UTC().Format(time.TimeOnly)))
	}
	p.running = false
	p.changed.Broadcast()
}

// PID of the process, 0 while it does not run.
func (p *Process) PID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.running {
		return 0
	}
	return p.cmd.Process.Pid
}

// Crashes are the ends that no fault has caused, with their time.
func (p *Process) Crashes() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.crashes...)
}

// Kill ends the process by a signal, and keeps it down until Release.
func (p *Process) Kill(sig syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = true
	if !p.running {
		return nil
	}
	err := p.cmd.Process.Signal(sig)
	if err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill %s: %w", p.Name, err)
	}
	give := time.AfterFunc(stopPatience, func() { _ = p.cmd.Process.Kill() })
	defer give.Stop()
	for p.running {
		p.changed.Wait()
	}
	return nil
}

// Release lets the supervisor start it again, and returns once it has.
func (p *Process) Release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = false
	p.changed.Broadcast()
	for !p.running && !p.stopping {
		p.changed.Wait()
	}
}

// stopPatience is how long a process may take to end in order.
const stopPatience = 15 * time.Second

// Stop ends it for good: in order where it can, by force after stopPatience.
func (p *Process) Stop() {
	p.mu.Lock()
	p.stopping = true
	p.changed.Broadcast()
	if p.running {
		_ = p.cmd.Process.Signal(syscall.SIGCONT)
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		give := time.AfterFunc(stopPatience, func() { _ = p.cmd.Process.Kill() })
		defer give.Stop()
	}
	p.mu.Unlock()
	<-p.done
}
