// Package keeper is the host's side of one sandbox on gVisor: it starts the sandbox, runs programs in it through the sentry's
// control socket, keeps their output, measures them, and answers toolbox.v1 on a socket. It outlives the services that call
// it; the sandbox does not outlive it.
//
// A program has ended when its leader has. Children that it left in the background run on until the sandbox is destroyed, but
// what they print later is not kept.
package keeper

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"syscall"
	"time"

	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/toolbox/ends"
	"github.com/sandtrail/sandtrail/toolbox/files"
	"github.com/sandtrail/sandtrail/toolbox/launch"
	"github.com/sandtrail/sandtrail/toolbox/server"
	"github.com/sandtrail/sandtrail/toolbox/task"
)

// Keeper holds one sandbox.
type Keeper struct {
	spec    launch.Spec
	version string
	log     *slog.Logger
	box     *sandbox
	meter   *meter
	// stir holds a value when a command began in a sandbox that ran none.
	stir chan struct{}
	// warden may be nil.
	warden  *warden
	files   *files.Files
	ports   ports
	ways    ports
	started time.Time
	// instance tells this process from every other toolbox.
	instance string
	// stop ends Serve.
	stop context.CancelFunc

	// configuring is held while the sandbox becomes somebody's.
	configuring sync.Mutex

	mu sync.Mutex
	// claimed is whose a warm sandbox has become; nil before, and for one that was started for somebody. With it change spec.SandboxID,
	// spec.Env and started, which nothing reads before but under mu.
	claimed *toolboxv1.Configure
	execs   map[string]*program
	ends    []*program
	// remembered are the ends of execs that are no longer in memory. It is not guarded by mu.
	remembered *ends.Ends
	running    int
	tags       uint32
	// tidy gives memory back some time after the last exec: most sandboxes do nothing most of the time.
	tidy *time.Timer
	// idle closes when, after shutting was set, no exec runs.
	shutting bool
	// over is why programs are ended once shutting is set.
	over string
	idle chan struct{}
	// final is the answer of a Shutdown that left nothing. One runs at a time.
	shutdown sync.Mutex
	final    *toolboxv1.ShutdownReply
}

const tidyAfter = 2 * time.Second

// giveBack returns free memory to the system. Pools let go of their buffers only at the second collection.
func giveBack() {
	runtime.GC()
	debug.FreeOSMemory()
}

// maxSpec bounds the launch description: the environment is most of it.
const maxSpec = 4 << 20

// Main reads a launch.Spec, starts its sandbox, answers a launch.Result and serves until the sandbox is shut down. It must
// run in a mount namespace of its own. The result is the exit code.
func Main(in io.Reader, out io.WriteCloser, version string, log *slog.Logger) int {
	// Little lives for long here, and there is a keeper for every sandbox.
	debug.SetGCPercent(25)
	// What a keeper does for one program is a chain of short steps. With several processors the runtime wakes a thread of another core
	// for each, which costs more than the step; and a sandbox that keeps its keeper busy could take all cores.
	runtime.GOMAXPROCS(1)
	var spec launch.Spec
	if err := json.NewDecoder(io.LimitReader(in, maxSpec)).Decode(&spec); err != nil {
		return answer(out, launch.Result{Reason: "internal", Message: "the launch description is not valid"})
	}
	log = log.With("sandbox", cmp.Or(spec.SandboxID, spec.RuntimeID))
	// From here on, so that a signal during the start ends it in order and not half-way.
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM, syscall.SIGINT)
	signal.Ignore(syscall.SIGHUP, syscall.SIGPIPE)
	k, l, err := open(spec, version, log)
	if err != nil {
		log.Error("sandbox not started", "error", err)
		r := launch.Result{Reason: "runtime_failed", Message: "the sandbox could not be started on this host"}
		if errors.Is(err, errSlowStart) {
			r = launch.Result{Reason: "start_deadline", Message: errSlowStart.Error()}
		}
		return answer(out, r)
	}
	ctx, stop := context.WithCancel(context.Background())
	k.stop = stop
	life, gone := context.WithCancel(ctx)
	go func() {
		<-k.box.gone
		gone()
	}()
	go k.watch()
	go k.balance()
	go k.signals(term)
	if spec.Warm {
		// Nobody waits for it yet: what init takes to come up is not the first one's to pay.
		<-k.box.up
	}
	answer(out, launch.Result{OK: true, PID: os.Getpid(), Phases: k.box.phases})
	if err := server.Serve(ctx, l, k, server.WithLog(log), server.WithLife(life)); err != nil {
		log.Error("serve", "error", err)
	}
	if err := k.close(); err != nil {
		log.Error("sandbox not removed", "error", err)
		return 1
	}
	return 0
}

func answer(out io.WriteCloser, r launch.Result) int {
	_ = json.NewEncoder(out).Encode(r)
	out.Close()
	if r.OK {
		return 0
	}
	return 1
}

// open starts the sandbox and everything that serves it.
func open(spec launch.Spec, version string, log *slog.Logger) (*Keeper, net.Listener, error) {
	if !filepath.IsAbs(spec.Dir) || spec.UID == 0 || spec.MountPath == "" || spec.RuntimeID == "" {
		return nil, nil, errors.New("launch description: dir, uid, mount path and runtime id are needed")
	}
	if err := isolate(); err != nil {
		return nil, nil, err
	}
	if err := os.MkdirAll(spec.Dir, 0o700); err != nil {
		return nil, nil, fmt.Errorf("make sandbox directory: %w", err)
	}
	box, err := boot(context.Background(), spec, log)
	if err != nil {
		return nil, nil, err
	}
	if spec.Warm {
		if err := box.hold(); err != nil {
			return nil, nil, errors.Join(err, box.destroy())
		}
	}
	if box.refused != nil {
		log.Warn("programs are run in another way, which is slower", "way", box.way, "refused", describe(box.refused))
	}
	k := &Keeper{
		spec: spec, version: version, log: log, box: box, meter: newMeter(box), started: time.Now(), instance: rand.Text(),
		execs: map[string]*program{}, remembered: ends.New(box.path("execs")), idle: make(chan struct{}), stir: make(chan struct{}, 1), tidy: time.AfterFunc(tidyAfter, giveBack),
	}
	k.meter.looks = k.look
	if k.warden, err = k.newWarden(); err != nil {
		return nil, nil, errors.Join(err, k.close())
	}
	l, err := k.listen()
	if err != nil {
		return nil, nil, errors.Join(err, k.close())
	}
	return k, l, nil
}

func (k *Keeper) listen() (net.Listener, error) {
	uid, gid := k.box.owner()
	f, err := files.Open(files.Options{
		Dir: k.box.workspace, MountPath: k.spec.MountPath, Own: true,
		UID: uid, GID: gid,
	})
	if err != nil {
		return nil, err
	}
	k.files = f
	l, err := server.Listen(k.box.dir)
	if err != nil {
		return nil, err
	}
	// Behind it: whoever finds the file finds somebody to talk to.
	if err := os.WriteFile(k.box.path("keeper.pid"), []byte(strconv.Itoa(os.Getpid())), 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("write pid: %w", err), l.Close())
	}
	return l, nil
}

// watch notes the end of the sentry, and takes it and what else dies as a child.
func (k *Keeper) watch() {
	<-k.box.gone
	k.box.children.Reap()
	k.mu.Lock()
	shutting := k.shutting
	k.mu.Unlock()
	if !shutting {
		k.log.Warn("the sandbox ended by itself", "oom_kills", k.meter.oomKills())
		// Nothing of it may go on, whatever the sentry died of.
		if err := k.box.kill(); err != nil {
			k.log.Error("sandbox not killed", "error", err)
		}
		k.box.children.Reap()
	}
}

// signals shuts down on TERM and INT, as a Shutdown call does.
func (k *Keeper) signals(term <-chan os.Signal) {
	for range term {
		go func() { _, _ = k.Shutdown(context.Background(), &toolboxv1.Shutdown{}) }()
	}
}

// lost says why the sandbox no longer runs; empty while it does.
func (k *Keeper) lost() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.lostLocked()
}

func (k *Keeper) lostLocked() string {
	if k.shutting {
		return k.over
	}
	select {
	case <-k.box.up:
		if k.box.upErr != nil {
			return reasonLost
		}
	default:
	}
	select {
	case <-k.box.gone:
		if k.meter.oomKills() > 0 {
			return reasonOOM
		}
		return reasonLost
	default:
		return ""
	}
}

// ended frees the exec's place. The oldest ends in memory give way: of those the end is remembered, the output goes.
func (k *Keeper) ended(p *program) {
	k.mu.Lock()
	k.running--
	if k.shutting && k.running == 0 {
		close(k.idle)
	}
	k.ends = append(k.ends, p)
	var old *program
	if len(k.ends) > maxEnds {
		old = k.ends[0]
		k.ends = k.ends[1:]
	}
	if k.running == 0 {
		k.tidy.Reset(tidyAfter)
	}
	k.mu.Unlock()
	if old != nil {
		k.drop(old)
	}
}

// drop removes an ended exec's output from memory and disk. Its end is remembered first: until now memory knew that it has run.
func (k *Keeper) drop(p *program) {
	if err := k.remembered.Put(p.id, p.end); err != nil {
		k.log.Error("end not recorded", "exec", p.id, "error", err)
	}
	k.mu.Lock()
	if k.execs[p.id] == p {
		delete(k.execs, p.id)
	}
	for i, e := range k.ends {
		if e == p {
			k.ends = append(k.ends[:i], k.ends[i+1:]...)
			break
		}
	}
	k.mu.Unlock()
	if err := errors.Join(p.spool.Remove(), os.RemoveAll(p.dir)); err != nil {
		k.log.Error("output not removed", "exec", p.id, "error", err)
	}
}

// Shutdown implements server.Handler. A call behind one that worked has the same answer; behind one that failed it tries again.
func (k *Keeper) Shutdown(_ context.Context, r *toolboxv1.Shutdown) (*toolboxv1.ShutdownReply, error) {
	k.shutdown.Lock()
	defer k.shutdown.Unlock()
	if k.final == nil {
		reply, err := k.end(task.Grace(r.GetGraceMs()), r.GetKeepRoot())
		if err != nil {
			return nil, fmt.Errorf("shut down: %w", err)
		}
		k.final = reply
		k.stop()
	}
	return k.final, nil
}

// end stops every program, the sandbox, and removes what was made for it. With keep it first leaves the root in the sandbox's directory;
// where that fails the sandbox goes on without programs.
func (k *Keeper) end(grace time.Duration, keep bool) (*toolboxv1.ShutdownReply, error) {
	k.mu.Lock()
	lost := k.lostLocked()
	alive := lost == "" || lost == reasonStopped
	if !k.shutting {
		k.shutting, k.over = true, reasonDestroyed
		if keep {
			k.over = reasonStopped
		}
		if k.running == 0 {
			close(k.idle)
		}
	}
	k.mu.Unlock()
	if alive {
		k.stopPrograms(grace)
	}
	rootLost := ""
	if keep {
		var err error
		if rootLost, err = k.keepRoot(alive); err != nil {
			return nil, err
		}
	}
	usage, _ := k.meter.usage()
	reply := &toolboxv1.ShutdownReply{Usage: usage, UptimeMs: uint64(time.Since(k.since()).Milliseconds()), RootLost: rootLost}
	if k.files != nil {
		k.files.Close()
	}
	err := k.box.destroy()
	select {
	case <-k.idle:
	case <-time.After(10 * time.Second):
		err = errors.Join(err, errors.New("commands did not settle"))
	}
	return reply, err
}

// stopPrograms asks every program to end and waits for the grace time.
func (k *Keeper) stopPrograms(grace time.Duration) {
	k.mu.Lock()
	idle := k.running == 0
	for _, p := range k.execs {
		p.mu.Lock()
		if p.reason == "" {
			p.reason, p.ending = k.over, make(chan struct{})
			close(p.ending)
		}
		p.mu.Unlock()
	}
	k.mu.Unlock()
	if idle || grace == 0 {
		return
	}
	over := time.NewTimer(grace)
	defer over.Stop()
	// The grace time is not longer for a sandbox that leaves nobody any CPU: what is left then is killed.
	go func() {
		if err := k.signalAll(syscall.SIGTERM); err != nil {
			k.log.Warn("commands not asked to end", "error", err)
		}
	}()
	select {
	case <-k.idle:
	case <-k.box.gone:
	case <-over.C:
	}
}

// close removes what an end leaves for those that still read output: the spools, the socket and the pid.
func (k *Keeper) close() error {
	if k.final == nil {
		if _, err := k.end(0, false); err != nil {
			return err
		}
	}
	var errs []error
	k.remembered.Close()
	errs = append(errs, os.RemoveAll(k.box.path("execs")))
	for _, name := range []string{server.Socket, "keeper.pid"} {
		if err := os.Remove(k.box.path(name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
