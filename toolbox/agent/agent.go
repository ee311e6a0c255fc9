// Package agent is the toolbox inside a sandbox: the first process of a container, which runs programs beside itself, keeps their
// output, and answers toolbox.v1 over TLS. What ends it ends the sandbox.
//
// Programs have the agent's own user: what an agent says is the guest's own word. It holds nothing that a program must not know
// but the key of its certificate and the environment of its sandbox.
//
// A program has ended when its leader has. Children that it left in the background run on until the sandbox ends, but what they
// print later is not kept.
package agent

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/toolbox/connect"
	"github.com/sandtrail/sandtrail/toolbox/files"
	"github.com/sandtrail/sandtrail/toolbox/server"
	"github.com/sandtrail/sandtrail/toolbox/task"
	"github.com/sandtrail/sandtrail/toolbox/wire"
)

const (
	// maxEnds are ended execs held in memory with their output. Of older ones only the end is kept, up to maxRemembered of them; an
	// id older than that counts as new.
	maxEnds       = 128
	maxRemembered = 16384
	// fileCalls at once: each may keep a thread busy.
	fileCalls = 16
)

// Agent runs the programs of one sandbox.
type Agent struct {
	o       Options
	version string
	log     *slog.Logger
	files   *files.Files
	slots   chan struct{}
	// ports has a place for each connection to one.
	ports    chan struct{}
	door     connect.Door
	children *children
	store    *store
	meter    *meter
	started  time.Time
	// instance tells this process from every other toolbox.
	instance string
	// stop ends Serve.
	stop context.CancelFunc

	mu         sync.Mutex
	execs      map[string]*program
	ends       []*program
	remembered remembered
	running    int
	// configured is nil while a Configure is awaited.
	configured *toolboxv1.Configure
	// idle closes when, after shutting was set, no exec runs.
	shutting bool
	idle     chan struct{}
	// final is the answer of a Shutdown that left nothing. One runs at a time.
	shutdown sync.Mutex
	final    *toolboxv1.ShutdownReply
}

// Main serves until the sandbox is shut down. The result is the exit code.
func Main(args []string, environ []string, version string, log *slog.Logger) int {
	o, err := parse(args)
	if err != nil {
		log.Error("the agent's arguments are not valid", "error", err)
		return 2
	}
	o.Env = imageEnv(environ)
	if err := run(o, version, log.With("name", o.Name)); err != nil {
		log.Error("the agent has ended", "error", err)
		return 1
	}
	return 0
}

// imageEnv leaves out what the cluster puts in: it is of no use to a program that cannot call it.
func imageEnv(environ []string) []string {
	var kept []string
	for _, kv := range environ {
		if !strings.HasPrefix(kv, "KUBERNETES_") && !strings.HasPrefix(kv, "SANDTRAIL_") {
			kept = append(kept, kv)
		}
	}
	return kept
}

func run(o Options, version string, log *slog.Logger) error {
	signals, err := protect(o)
	if err != nil {
		return err
	}
	l, err := listen(o)
	if err != nil {
		return err
	}
	a, err := open(o, version, log)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	ctx, stop := context.WithCancel(context.Background())
	a.stop = stop
	go a.take(signals)
	go a.meter.watch(ctx, a)
	log.Info("the agent answers", "address", l.Addr().String())
	err = server.Serve(ctx, l, a, server.WithLog(log), server.WithTarget(o.Name, o.UID))
	if _, ended := a.Shutdown(context.Background(), &toolboxv1.Shutdown{}); ended != nil {
		err = errors.Join(err, ended)
	}
	a.files.Close()
	return err
}

func open(o Options, version string, log *slog.Logger) (*Agent, error) {
	f, err := files.Open(files.Options{Dir: o.Workspace, MountPath: o.MountPath})
	if err != nil {
		return nil, err
	}
	a := &Agent{
		o: o, version: version, log: log, files: f, slots: make(chan struct{}, fileCalls), ports: make(chan struct{}, connect.Most), children: newChildren(), store: newStore(o.State, o.SpoolBytes),
		started: time.Now(), instance: rand.Text(), execs: map[string]*program{}, idle: make(chan struct{}), remembered: remembered{ends: map[string][]byte{}},
	}
	a.meter = newMeter(a.children, o.MemoryBytes)
	if o.SandboxID != "" {
		a.configured = &toolboxv1.Configure{SandboxId: o.SandboxID}
	}
	return a, nil
}

// take handles signals. Only the death of children means anything: whoever may end the sandbox calls Shutdown, and a program can
// send every signal that a node can. With ObeyTERM a TERM is a Shutdown, whoever sent it.
func (a *Agent) take(signals <-chan os.Signal) {
	for s := range signals {
		switch {
		case s == syscall.SIGCHLD:
			a.children.reap()
		case s == syscall.SIGTERM && a.o.ObeyTERM:
			go func() {
				_, _ = a.Shutdown(context.Background(), &toolboxv1.Shutdown{GraceMs: uint64(task.TimeoutGrace.Milliseconds())})
			}()
		}
	}
}

// Configure implements server.Handler.
func (a *Agent) Configure(_ context.Context, r *toolboxv1.Configure) (*toolboxv1.ConfigureReply, error) {
	if r.GetSandboxId() == "" {
		return nil, invalid("sandbox_id is needed")
	}
	if err := task.CheckEnvironment(r.GetEnv()); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if had := a.configured; had != nil && (had.SandboxId != r.SandboxId || !maps.Equal(had.Env, r.Env)) {
		return nil, wire.NewError("failed_precondition", "illegal_state", "the agent is configured for another sandbox, or in another way")
	}
	a.configured = r
	return &toolboxv1.ConfigureReply{}, nil
}

// Shutdown implements server.Handler. A call behind one that worked has the same answer; behind one that failed it tries again.
func (a *Agent) Shutdown(_ context.Context, r *toolboxv1.Shutdown) (*toolboxv1.ShutdownReply, error) {
	if r.GetKeepRoot() {
		return nil, wire.NewError("failed_precondition", "not_implemented", "an agent cannot keep the root of its pod")
	}
	a.shutdown.Lock()
	defer a.shutdown.Unlock()
	if a.final == nil {
		reply, err := a.end(task.Grace(r.GetGraceMs()))
		if err != nil {
			return nil, fmt.Errorf("shut down: %w", err)
		}
		a.final = reply
		a.stop()
	}
	return a.final, nil
}

// end stops every program, those in the background included.
func (a *Agent) end(grace time.Duration) (*toolboxv1.ShutdownReply, error) {
	a.mu.Lock()
	if !a.shutting {
		a.shutting = true
		if a.running == 0 {
			close(a.idle)
		}
	}
	for _, p := range a.execs {
		p.mu.Lock()
		if p.reason == "" {
			p.reason, p.ending = task.Destroyed, make(chan struct{})
			close(p.ending)
		}
		p.mu.Unlock()
	}
	idle := a.running == 0
	a.mu.Unlock()
	if !idle && grace > 0 {
		a.signalAll(syscall.SIGTERM)
		over := time.NewTimer(grace)
		defer over.Stop()
		select {
		case <-a.idle:
		case <-over.C:
		}
	}
	usage, _ := a.meter.usage()
	err := a.killAll()
	select {
	case <-a.idle:
	case <-time.After(10 * time.Second):
		err = errors.Join(err, errors.New("commands did not settle"))
	}
	return &toolboxv1.ShutdownReply{Usage: usage, UptimeMs: uint64(time.Since(a.started).Milliseconds())}, err //nolint:gosec // not negative
}

// listen binds before anything else runs: no program can have the port first.
func listen(o Options) (net.Listener, error) {
	config, err := serverTLS(o.Name, []byte(o.ClientCA))
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", o.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	return secure(l, config, o.AllowLocal), nil
}
