// Package process runs the programs of a cluster by name: starts them, signals them, knows whether they run, and slows them down.
package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Spec is one program. A name is used once at a time; starting it again after its end takes the log on.
type Spec struct {
	Name string   `json:"name"`
	Argv []string `json:"argv"`
	Env  []string `json:"env"` // besides the environment of whoever starts it
	Log  string   `json:"log"` // the file that takes its output, appended to
	// Self starts the program of whoever starts it, which finds what to be by Argv[0].
	Self bool `json:"self"`
}

// Status is what is known of a program that was started.
type Status struct {
	Name    string    `json:"name"`
	PID     int       `json:"pid"` // as its starter sees it
	Running bool      `json:"running"`
	Ended   string    `json:"ended"` // how it ended, empty while it runs
	Started time.Time `json:"started"`
	Spec    Spec      `json:"spec"`
}

type program struct {
	spec    Spec
	cmd     *exec.Cmd
	started time.Time
	done    chan struct{}
	ended   string // to be read when done is closed
	slow    context.CancelFunc
}

func (p *program) running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Set is the programs that this process runs. They end with it.
type Set struct {
	mu       sync.Mutex
	programs map[string]*program
	helpers  map[int]bool // processes that Run waits for
	starts   chan func()
}

// NewSet makes an empty set.
func NewSet() *Set {
	s := &Set{programs: map[string]*program{}, helpers: map[int]bool{}, starts: make(chan func())}
	// A child that is to end with its parent ends with the thread that made it, and this thread stays.
	go func() {
		runtime.LockOSThread()
		for start := range s.starts {
			start()
		}
	}()
	return s
}

// launch starts a command on the thread that stays.
func (s *Set) launch(cmd *exec.Cmd) error {
	failed := make(chan error)
	s.starts <- func() { failed <- cmd.Start() }
	return <-failed
}

// Start starts a program; it is an error while one of that name runs.
func (s *Set) Start(_ context.Context, spec Spec) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.programs[spec.Name]; p != nil && p.running() {
		return fmt.Errorf("%s runs already", spec.Name)
	}
	log, err := os.OpenFile(spec.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	p := &program{spec: spec, started: time.Now(), done: make(chan struct{})}
	p.cmd = exec.Command(spec.Argv[0], spec.Argv[1:]...)
	if spec.Self {
		p.cmd.Path, p.cmd.Err = "/proc/self/exe", nil
	}
	p.cmd.Env = append(os.Environ(), spec.Env...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	if err := s.launch(p.cmd); err != nil {
		return fmt.Errorf("start %s: %w", spec.Name, err)
	}
	s.programs[spec.Name] = p
	go func() {
		err := p.cmd.Wait()
		p.ended = p.cmd.ProcessState.String()
		if err == nil {
			p.ended = "ended by itself"
		}
		close(p.done)
	}()
	return nil
}

// Signal sends a signal to a program that runs.
func (s *Set) Signal(_ context.Context, name string, sig syscall.Signal) error {
	p, err := s.find(name)
	if err != nil {
		return err
	}
	return p.cmd.Process.Signal(sig)
}

func (s *Set) find(name string) (*program, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.programs[name]
	if p == nil {
		return nil, fmt.Errorf("%s was never started", name)
	}
	return p, nil
}

// Wait waits until a program has ended.
func (s *Set) Wait(ctx context.Context, name string) error {
	p, err := s.find(name)
	if err != nil {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s still runs: %w", name, ctx.Err())
	}
}

// Status tells of every program that was started, in order of names.
func (s *Set) Status(context.Context) ([]Status, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Status
	for name, p := range s.programs {
		st := Status{Name: name, PID: p.cmd.Process.Pid, Running: p.running(), Started: p.started, Spec: p.spec}
		if !st.Running {
			st.Ended = p.ended
		}
		all = append(all, st)
	}
	slices.SortFunc(all, func(a, b Status) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

// Slow stops a program for pause, lets it run for run, and so on: what is asked of it takes up to a pause longer. A pause of 0 ends that.
func (s *Set) Slow(_ context.Context, name string, pause, run time.Duration) error {
	p, err := s.find(name)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.slow != nil {
		p.slow()
		p.slow = nil
	}
	if pause <= 0 {
		return nil
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	p.slow = func() { stop(); <-ended }
	go func() {
		defer close(ended)
		p.hold(ctx, pause, run)
	}()
	return nil
}

// hold leaves the program running when ctx or the program ends.
func (p *program) hold(ctx context.Context, pause, run time.Duration) {
	wait := func(d time.Duration) bool {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
			return true
		case <-ctx.Done():
		case <-p.done:
		}
		return false
	}
	for goOn := true; goOn; {
		_ = p.cmd.Process.Signal(syscall.SIGSTOP)
		goOn = wait(pause)
		_ = p.cmd.Process.Signal(syscall.SIGCONT)
		goOn = goOn && wait(run)
	}
}

// Run runs a command to its end and returns what it wrote; the error of one that failed holds that too.
func (s *Set) Run(ctx context.Context, argv ...string) (string, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	s.mu.Lock()
	err := s.launch(cmd)
	if err == nil {
		s.helpers[cmd.Process.Pid] = true
	}
	s.mu.Unlock()
	if err != nil {
		return "", err
	}
	err = cmd.Wait()
	s.mu.Lock()
	delete(s.helpers, cmd.Process.Pid)
	s.mu.Unlock()
	if err != nil {
		return out.String(), fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, strings.TrimSpace(out.String()))
	}
	return out.String(), nil
}

// Stop ends every program that runs, by force after the context's end, the last started first.
func (s *Set) Stop(ctx context.Context) error {
	all, _ := s.Status(ctx)
	slices.SortFunc(all, func(a, b Status) int { return b.Started.Compare(a.Started) })
	var failed error
	for _, st := range all {
		if !st.Running {
			continue
		}
		failed = errors.Join(failed, s.end(ctx, st.Name))
	}
	return failed
}

func (s *Set) end(ctx context.Context, name string) error {
	_ = s.Slow(ctx, name, 0, 0)
	_ = s.Signal(ctx, name, syscall.SIGCONT)
	_ = s.Signal(ctx, name, syscall.SIGTERM)
	if s.Wait(ctx, name) == nil {
		return nil
	}
	_ = s.Signal(ctx, name, syscall.SIGKILL)
	return s.Wait(context.WithoutCancel(ctx), name)
}
