package keeper

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtrail/sandtrail/toolbox/cgroup"
	"github.com/sandtrail/sandtrail/toolbox/launch"
	"github.com/sandtrail/sandtrail/toolbox/sentry"
	"github.com/sandtrail/sandtrail/toolbox/task"
)

const (
	// sentryBytes is memory that the sentry and its helpers need above what the guest was promised.
	sentryBytes = 48 << 20
	// hostTasks is the host's bound for a sandbox without processes. In peace it has about 30 and
	// two more for each process of the guest, in a storm of forks far more, and a sentry that reaches the bound dies.
	hostTasks = 256
	// bootTimeout bounds a start where the description does not.
	bootTimeout = 30 * time.Second
)

// sandbox is a running sentry with everything that was made for it.
type sandbox struct {
	spec  launch.Spec
	log   *slog.Logger
	group *cgroup.Group
	// dir is the sandbox's directory: spec.Dir, or once it runs for nobody yet, a way to it that stands however it is renamed.
	dir string
	// held keeps that way open until the process ends.
	held *os.File
	// desk is a directory that only this process and its children see, and that every user may pass through; workspace is in it.
	desk      string
	workspace string
	// device holds the workspace's file system; empty where it has none of its own.
	device    string
	runscRoot *os.File
	// control is how programs are run, way its name, refused why another one did not work.
	control sentry.Control
	// memory is nil where the cgroup tells. layer is the file that holds what is written outside of the workspace; nil where it was
	// not found, which only costs a line in an exec's end.
	memory  *memory
	layer   *os.File
	way     string
	refused error
	// children takes whatever dies, from the moment the sentry runs.
	children *sentry.Reaper
	link     *link
	// pid is the sentry's; gone closes when it has ended.
	pid  int
	gone chan struct{}
	// up closes when init is there, or will never be, which upErr says.
	up     chan struct{}
	upErr  error
	phases []launch.Phase
	mark   time.Time
}

func (b *sandbox) phase(name string) {
	now := time.Now()
	b.phases = append(b.phases, launch.Phase{Name: name, Took: now.Sub(b.mark).Microseconds()})
	b.mark = now
}

// boot starts the sandbox; it is ready when an exec works. On an error nothing is left.
func boot(ctx context.Context, s launch.Spec, log *slog.Logger) (*sandbox, error) {
	b := &sandbox{spec: s, dir: s.Dir, log: log, children: sentry.NewReaper(), gone: make(chan struct{}), up: make(chan struct{}), mark: time.Now()}
	limit := bootTimeout
	if s.StartTimeoutMs > 0 {
		limit = time.Duration(min(s.StartTimeoutMs, task.MaxTimeout)) * time.Millisecond
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errSlowStart)
	defer cancel()
	err := b.start(ctx)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = fmt.Errorf("%w behind step %q: %w", cause, b.step(), err)
		}
		return nil, errors.Join(err, b.destroy(), os.RemoveAll(b.path("execs")))
	}
	return b, nil
}

// errSlowStart: the time of the whole start is over.
var errSlowStart = errors.New("the sandbox did not start in time")

// step is the last that was done.
func (b *sandbox) step() string {
	if n := len(b.phases); n > 0 {
		return b.phases[n-1].Name
	}
	return "none"
}

func (b *sandbox) start(ctx context.Context) error {
	// The sentry and its gofer lose their parent when runsc ends; they must become ours, or nobody may reap them.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become subreaper: %w", err)
	}
	for _, d := range []string{"overlay", "execs"} {
		if err := os.MkdirAll(b.path(d), 0o700); err != nil {
			return fmt.Errorf("make directory: %w", err)
		}
	}
	if err := b.mount(); err != nil {
		return err
	}
	b.phase("workspace")
	if err := b.makeGroup(); err != nil {
		return err
	}
	if err := writeBundle(b.spec, b.desk); err != nil {
		return err
	}
	root, err := b.openRoot()
	if err != nil {
		return err
	}
	b.phase("prepare")
	if err := b.run(ctx); err != nil {
		closeAll(root)
		return err
	}
	b.phase("runsc")
	until, _ := ctx.Deadline()
	go b.awaitInit(until)
	if err := b.takeControl(ctx); err != nil {
		closeAll(root)
		return fmt.Errorf("first exec: %w", err)
	}
	b.phase("probe")
	if len(root) > 0 {
		go b.emptyRoot(root)
	}
	if b.group.Real() {
		return b.group.Limit(b.limits())
	}
	return nil
}

// awaitInit ends the sandbox where init does not say in time that it is there. Nothing waits for it but the first program: the
// sandbox is ready when the way that programs are started works, and init, the last of the start to take CPU, comes up meanwhile.
func (b *sandbox) awaitInit(until time.Time) {
	defer close(b.up)
	if err := b.link.ready(time.Until(until)); err != nil {
		select {
		case <-b.gone:
			return
		default:
		}
		b.upErr = err
		b.log.Error("init did not come up: the sandbox is ended", "error", err)
		_ = b.kill()
	}
}

// path is below the sandbox's directory, inner below the desk.
func (b *sandbox) path(name string) string  { return filepath.Join(b.dir, name) }
func (b *sandbox) inner(name string) string { return filepath.Join(b.desk, name) }

// mount brings everything that the guest gets to one short place: the directories above the image or the workspace may be
// closed to the guest's ids.
func (b *sandbox) mount() error {
	s := b.spec
	desk, err := mountDesk(s.Dir, s.Runsc, s.Toolbox, s.Rootfs, s.Workspace)
	if err != nil {
		return err
	}
	b.desk, b.workspace = desk, filepath.Join(desk, "workspace")
	for _, d := range []string{"workspace", "runsc", "bundle", "image", "points", "rootfs"} {
		if err := os.Mkdir(b.inner(d), 0o755); err != nil {
			return fmt.Errorf("make directory: %w", err)
		}
	}
	if err := bindReadOnly(s.Rootfs, b.inner("image")); err != nil {
		return err
	}
	if err := makePoints(b.inner("image"), b.inner("points"), s.MountPath, guestInit); err != nil {
		return err
	}
	if err := mountLayers(b.inner("rootfs"), b.inner("points"), b.inner("image")); err != nil {
		return err
	}
	if err := os.WriteFile(b.inner("init"), nil, 0o644); err != nil {
		return fmt.Errorf("make init: %w", err)
	}
	if err := bindReadOnly(s.Toolbox, b.inner("init")); err != nil {
		return err
	}
	if s.Rootless {
		return bindWorkspace(s.Workspace, b.workspace)
	}
	if b.device, err = mountWorkspace(s.Workspace, b.workspace); err != nil {
		return err
	}
	// A new file system's own directory would be the first thing that a program sees in its workspace.
	_ = os.Remove(filepath.Join(b.workspace, "lost+found"))
	uid, gid := b.owner()
	if err := os.Lchown(b.workspace, uid, gid); err != nil {
		return fmt.Errorf("give workspace to the guest: %w", err)
	}
	return nil
}

// limits are those of the sandbox's cgroup.
func (b *sandbox) limits() cgroup.Limits {
	limits := cgroup.Limits{CPUMillis: b.spec.CPUMillis}
	if b.spec.MemoryBytes > 0 {
		limits.MemoryBytes = b.spec.MemoryBytes + sentryBytes
	}
	if b.spec.PIDs > 0 {
		limits.PIDs = hostTasks + 6*uint64(b.spec.PIDs)
	}
	return limits
}

// makeGroup makes the cgroup, without its limit of CPU: nothing of the guest runs yet, and runsc uses several CPUs to start.
func (b *sandbox) makeGroup() error {
	limits := b.limits()
	limits.CPUMillis = 0
	g, err := b.ownGroup(limits)
	if err != nil {
		return err
	}
	b.group = g
	return g.Save(b.path("cgroup.json"))
}

// run starts the sentry inside the cgroup.
func (b *sandbox) run(ctx context.Context) error {
	root, err := os.Open(b.inner("runsc"))
	if err != nil {
		return fmt.Errorf("open runsc root: %w", err)
	}
	b.runscRoot = root
	link, stdio, err := newLink()
	if err != nil {
		return err
	}
	b.link = link
	defer closeAll(stdio[:])
	args := append(b.flags(b.inner("runsc.log")), "--platform", "systrap", "--network", "none", "--host-uds", "none",
		fmt.Sprintf("--overlay2=root:dir=%s,size=%d", b.path("overlay"), b.overlayBytes()),
		"run", "-detach", "-bundle", b.inner("bundle"), "-pid-file", b.inner("sentry.pid"))
	args = append(append(args, b.putBack()...), b.spec.RuntimeID)
	cmd := exec.CommandContext(ctx, b.spec.Runsc, args...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdio[0], stdio[1], stdio[2]
	if err = b.group.Start(cmd); err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return fmt.Errorf("runsc run: %w: %s", err, b.diagnosis())
	}
	if err := b.watch(); err != nil {
		return err
	}
	overlay := b.path("overlay") + "/"
	b.layer, err = heldBy(b.pid, func(path string) bool { return strings.HasPrefix(path, overlay) })
	if err != nil {
		b.log.Warn("the layer of the root is not watched", "error", err)
		err = nil
	}
	if !b.group.Real() {
		b.memory, err = openMemory(b.pid)
	}
	return err
}

// overlayBytes may be written outside of the workspace.
func (b *sandbox) overlayBytes() uint64 { return max(b.spec.OverlayBytes, 1<<20) }

// flags are those of every call of runsc. What goes on being written must not fill the desk.
func (b *sandbox) flags(log string) []string {
	return []string{"--root", b.inner("runsc"), "--log", log, "--ignore-cgroups"}
}

// diagnosis is the end of runsc's log, for ours.
func (b *sandbox) diagnosis() string {
	f, err := os.Open(b.inner("runsc.log"))
	if err != nil {
		return "no log"
	}
	defer f.Close()
	const tail = 2048
	if info, err := f.Stat(); err == nil && info.Size() > tail {
		_, _ = f.Seek(-tail, io.SeekEnd)
	}
	text, _ := io.ReadAll(io.LimitReader(f, tail))
	return string(bytes.TrimSpace(text))
}

// watch follows the sentry by a descriptor: runsc's own state says running after it died.
func (b *sandbox) watch() error {
	text, err := os.ReadFile(b.inner("sentry.pid"))
	if err != nil {
		return fmt.Errorf("read the sentry's pid: %w", err)
	}
	b.pid, err = strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return fmt.Errorf("read the sentry's pid: %w", err)
	}
	fd, err := unix.PidfdOpen(b.pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("watch the sentry: %w", err)
	}
	f := os.NewFile(uintptr(fd), "sentry")
	raw, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return fmt.Errorf("watch the sentry: %w", err)
	}
	go func() {
		defer f.Close()
		defer close(b.gone)
		_ = raw.Read(func(fd uintptr) bool {
			poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			n, err := unix.Poll(poll, 0)
			return n > 0 || (err != nil && err != unix.EINTR)
		})
	}()
	return nil
}

// socketTimeout bounds the first exec over the control socket where there is another way.
const socketTimeout = 10 * time.Second

// takeControl finds a way of control that works, as every exec will use it: the sentry's control socket, whose protocol is
// internal to gVisor, or else the runsc program, which is slower. The description may name one.
func (b *sandbox) takeControl(ctx context.Context) error {
	// Not before: what runsc itself started, it waits for.
	go b.reap()
	ways := map[string]func() sentry.Control{
		launch.ControlSocket: func() sentry.Control {
			return sentry.New(b.spec.RuntimeID, sentry.Dialer(b.runscRoot, b.spec.RuntimeID))
		},
		launch.ControlCommand: func() sentry.Control {
			return sentry.NewCommand(b.spec.Runsc, b.flags("/dev/null"), b.spec.RuntimeID, b.desk, b.children)
		},
	}
	order := []string{launch.ControlSocket, launch.ControlCommand}
	if b.spec.Control != "" {
		order = []string{b.spec.Control}
	}
	var errs []error
	for i, name := range order {
		open := ways[name]
		if open == nil {
			return fmt.Errorf("there is no control %q", name)
		}
		limit := bootTimeout
		if i < len(order)-1 {
			limit = socketTimeout
		}
		control := open()
		err := b.probe(ctx, control, limit)
		if err == nil {
			b.control, b.way, b.refused = control, name, errors.Join(errs...)
			return nil
		}
		control.Close()
		errs = append(errs, fmt.Errorf("%s: %w", name, err))
		select {
		case <-b.gone:
			return errors.Join(errs...)
		default:
		}
	}
	return errors.Join(errs...)
}

// reap takes dead children until the process ends.
func (b *sandbox) reap() {
	died := make(chan os.Signal, 1)
	signal.Notify(died, unix.SIGCHLD)
	b.children.Reap()
	for range died {
		b.children.Reap()
	}
}

// probe starts a program the way every exec is started: one that does not exist, and the sentry must say so. That shows that the
// call, its arguments and the guest's files are understood; that programs run is shown by init, which is waited for next. Running
// a second program for it would cost a start of 25 ms.
func (b *sandbox) probe(ctx context.Context, control sentry.Control, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var stdio [3]*os.File
	for i := range stdio {
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		defer r.Close()
		defer w.Close()
		stdio[i] = w
		if i == 0 {
			stdio[i] = r
		}
	}
	_, err := control.Execute(ctx, sentry.Program{
		Argv: []string{path.Join(path.Dir(guestInit), "none")}, WorkingDir: "/", UID: b.spec.UID, GID: b.spec.GID, Stdio: stdio,
	})
	var answered *sentry.Error
	switch {
	case err == nil:
		return errors.New("a program that does not exist was started")
	case errors.As(err, &answered) && answered.Classify() == sentry.NotFound:
		return nil
	}
	return err
}

// destroy ends the sandbox and removes everything of it but Dir, the spools and the final numbers. It may be called at any
// point of a start, and again after an error.
func (b *sandbox) destroy() error {
	var errs []error
	if b.link != nil {
		b.link.close()
	}
	if b.control != nil {
		b.control.Close()
	}
	if b.group != nil {
		errs = append(errs, b.kill())
	}
	b.children.Reap()
	if b.group != nil {
		errs = append(errs, b.group.Remove())
	}
	if b.runscRoot != nil {
		b.runscRoot.Close()
	}
	if b.memory != nil {
		b.memory.guest.Close()
	}
	if b.layer != nil {
		b.layer.Close()
	}
	if b.desk != "" {
		for _, name := range []string{"runsc/null-netns", "workspace", "init", "rootfs", "image", ""} {
			errs = append(errs, unmount(b.inner(name)))
		}
	}
	if err := os.Remove(b.path("cgroup.json")); err != nil && !errors.Is(err, os.ErrNotExist) {
		errs = append(errs, err)
	}
	errs = append(errs, os.RemoveAll(b.path("overlay")))
	return errors.Join(errs...)
}

// kill ends every process of the sandbox.
func (b *sandbox) kill() error {
	const within = 10 * time.Second
	if b.group.Real() {
		return b.group.Kill(within)
	}
	return killDescendants(b.children, within)
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}
