package node

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtrail/sandtrail/tests/e2e/cluster/process"
)

// The program that makes a node is also the node's first process: it starts itself again under these names, and a main or test never sees them.
const (
	argvFirst = "sandtrail-node-first"
	argvInit  = "sandtrail-node-init"
	gateFD    = 3
)

func init() {
	if len(os.Args) != 2 {
		return
	}
	var run func(dir string) error
	switch os.Args[0] {
	case argvFirst:
		run = enter
	case argvInit:
		run = serve
	default:
		return
	}
	if err := run(os.Args[1]); err != nil {
		log.Fatalf("%s: %v", os.Args[0], err)
	}
	os.Exit(0)
}

// enter waits until its maker has put it into its cgroups and made the link, and takes these groups as the root of what it sees. A namespace of
// cgroups is a thread's: the process starts itself once more from the thread that has it.
func enter(dir string) error {
	runtime.LockOSThread()
	if n, err := os.NewFile(gateFD, "gate").Read(make([]byte, 1)); n != 1 {
		return fmt.Errorf("the gate did not open: %w", err)
	}
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("unshare cgroups: %w", err)
	}
	return syscall.Exec("/proc/self/exe", []string{argvInit, dir}, os.Environ())
}

func serve(dir string) error {
	n, err := read(dir)
	if err != nil {
		return err
	}
	if !n.Keep {
		go func() {
			_, _ = os.NewFile(gateFD, "gate").Read(make([]byte, 1))
			log.Print("whoever made this node is gone")
			os.Exit(1)
		}()
	}
	for _, step := range []func() error{n.mounts, n.joinInside, n.environment} {
		if err := step(); err != nil {
			return err
		}
	}
	set := process.NewSet()
	go set.Reap(context.Background())
	_ = os.Remove(n.Socket())
	l, err := net.Listen("unix", n.Socket())
	if err != nil {
		return err
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM, syscall.SIGINT)
	server := &http.Server{Handler: process.Handler(set), ReadHeaderTimeout: 10 * time.Second}
	go func() { <-ended; _ = server.Close() }()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func (n *Node) environment() error {
	if err := unix.Sethostname([]byte(Name)); err != nil {
		return err
	}
	if err := os.Setenv("PATH", strings.Join(append(n.Path, os.Getenv("PATH"), "/usr/sbin:/usr/bin:/sbin:/bin"), ":")); err != nil {
		return err
	}
	for _, kv := range n.Env {
		name, value, _ := strings.Cut(kv, "=")
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	return nil
}

// masked are settings of the whole machine that the kubelet wants to have and would change. It is shown files that have them.
var masked = map[string]string{
	"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
	"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
}

func (n *Node) mounts() error {
	if err := mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	// What they hide is read before.
	all, err := hierarchies()
	if err != nil {
		return err
	}
	for _, m := range [][3]string{
		{"proc", "/proc", ""},
		{"sysfs", "/sys", ""},
		{"tmpfs", "/run", "mode=755"},
		{"tmpfs", "/var/log", "mode=755"},
		{"tmpfs", "/var/lib", "mode=755"},
	} {
		if err := mount(m[0], m[1], m[0], 0, m[2]); err != nil {
			return err
		}
	}
	if err := mountGroups(all); err != nil {
		return err
	}
	for name, value := range masked {
		file := filepath.Join(n.Dir, "sysctl-"+strings.ReplaceAll(name, "/", "-"))
		if err := os.WriteFile(file, []byte(value+"\n"), 0o644); err != nil {
			return err
		}
		if err := mount(file, "/proc/sys/"+name, "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	// The kubelet hands mounts on to the pods.
	return mount("none", "/", "", unix.MS_REC|unix.MS_SHARED, "")
}

func mount(from, to, kind string, flags uintptr, data string) error {
	if err := unix.Mount(from, to, kind, flags, data); err != nil {
		return fmt.Errorf("mount %s on %s: %w", from, to, err)
	}
	return nil
}

// mountGroups mounts the hierarchies that the host has, each with the node's group as its root.
func mountGroups(all []hierarchy) error {
	const at = "/sys/fs/cgroup"
	if len(all) == 1 && all[0].name == "" {
		if err := mount("cgroup2", at, "cgroup2", 0, ""); err != nil {
			return err
		}
		return delegate(at)
	}
	if err := mount("tmpfs", at, "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	for _, h := range all {
		kind, dir := "cgroup", strings.TrimPrefix(h.name, "name=")
		if h.name == "" {
			kind, dir = "cgroup2", "unified"
		}
		dir = filepath.Join(at, dir)
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		if err := mount(kind, dir, kind, 0, h.name); err != nil {
			return err
		}
	}
	return nil
}

// delegate gives the groups below the node's their controllers. A group of version 2 that does has no process of its own.
func delegate(root string) error {
	own := filepath.Join(root, "programs")
	if err := os.Mkdir(own, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(own, "cgroup.procs"), []byte("0"), 0o644); err != nil {
		return err
	}
	controllers, err := os.ReadFile(filepath.Join(root, "cgroup.controllers"))
	if err != nil {
		return err
	}
	var on []string
	for _, c := range strings.Fields(string(controllers)) {
		on = append(on, "+"+c)
	}
	return os.WriteFile(filepath.Join(root, "cgroup.subtree_control"), []byte(strings.Join(on, " ")), 0o644)
}
