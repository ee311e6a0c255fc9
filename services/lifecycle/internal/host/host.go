// Package host says whether this host can run sandboxes, as data for `sandtrail doctor`. It changes nothing. A worker without root
// needs less: what is only for root is optional then, and says which limit is lost.
package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandtrail/sandtrail/services/lifecycle/internal/prepare"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/workspace"
	"github.com/sandtrail/sandtrail/toolbox/cgroup"
	"github.com/sandtrail/sandtrail/toolbox/launch"
)

// Check is one finding.
type Check struct {
	Name string
	OK   bool
	// Detail is what was found, Fix what a person can do; Fix is empty when OK.
	Detail, Fix string
	// Optional: sandboxes run without it, with less.
	Optional bool
}

// Config of the checks.
type Config struct {
	StateDir string
	// Runsc that was prepared; empty: the check only looks whether one can be had.
	Runsc string
	// MinFreeBytes of disk; default 5 GiB.
	MinFreeBytes uint64
}

// Checks runs every check; a failing one never stops another. With a Runsc it takes about as long as a sandbox's start.
func Checks(ctx context.Context, c Config) []Check {
	return []Check{
		root(), cgroups(), loops(), programs(), runsc(ctx, c.Runsc), disk(c), packages(), namespaces(),
	}
}

// OK reports whether every check that is not optional holds.
func OK(checks []Check) bool {
	for _, c := range checks {
		if !c.OK && !c.Optional {
			return false
		}
	}
	return true
}

func result(name string, err error, good, fix string) Check {
	if err != nil {
		return Check{Name: name, Detail: err.Error(), Fix: fix}
	}
	return Check{Name: name, OK: true, Detail: good}
}

// rootless: the worker would not be root.
func rootless() bool { return os.Geteuid() != 0 }

// forRoot makes a check optional for a worker without root, and says what it loses.
func forRoot(c Check, lost string) Check {
	if rootless() && !c.OK {
		c.Optional = true
		c.Detail += ": " + lost
	}
	return c
}

func root() Check {
	var err error
	if rootless() {
		err = fmt.Errorf("running as user %d", os.Geteuid())
	}
	c := result("root", err, "running as root", "run the worker as root where programs are hostile or limits must hold")
	return forRoot(c, "a program that got out of gVisor would be this user")
}

func cgroups() Check {
	settled, err := cgroup.Settled()
	if settled {
		err = tryGroup()
	}
	// Where it is not, the worker settles when it starts; trying that would move processes.
	version := "version 1"
	if _, e := os.Stat("/sys/fs/cgroup/cgroup.controllers"); e == nil {
		version = "version 2"
	}
	if err != nil && rootless() {
		err = errors.New("none may be made")
	}
	c := result("cgroups", err, version+", with memory, cpu and pids limits", "mount cgroups read-write and delegate memory, cpu and pids to this service (systemd: Delegate=yes)")
	return forRoot(c, "CPU has no limit, and memory is watched: a command that takes more is ended, but only once it has")
}

// tryGroup makes a group with limits and removes it.
func tryGroup() error {
	g, err := cgroup.Open(fmt.Sprintf("sandtrail-check-%d", os.Getpid()))
	if err != nil {
		return err
	}
	return errors.Join(g.Create(cgroup.Limits{MemoryBytes: 64 << 20, CPUMillis: 1000, PIDs: 100}), g.Remove())
}

func loops() Check {
	if rootless() {
		c := Check{Name: "loop devices", Detail: "for root only", Fix: "run the worker as root"}
		return forRoot(c, "a workspace is a directory, and its size is watched: a command that passes it is ended, but only once it has")
	}
	f, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err == nil {
		_, err = unix.IoctlRetInt(int(f.Fd()), unix.LOOP_CTL_GET_FREE)
		err = errors.Join(err, f.Close())
	}
	return result("loop devices", err, "one is free", "load the loop module (modprobe loop) and give this process /dev/loop-control and /dev/loop*")
}

func programs() Check {
	if rootless() {
		return Check{Name: "e2fsprogs", OK: true, Detail: "not needed without root"}
	}
	var missing []string
	for _, p := range []string{"mkfs.ext4", "debugfs"} {
		if _, err := workspace.Program(p); err != nil {
			missing = append(missing, p)
		}
	}
	var err error
	if len(missing) > 0 {
		err = fmt.Errorf("missing: %s", strings.Join(missing, ", "))
	}
	return result("e2fsprogs", err, "mkfs.ext4 and debugfs are there", "install e2fsprogs")
}

func runsc(ctx context.Context, path string) Check {
	if path != "" {
		return result("runsc", prepare.Probe(ctx, path), "a test sandbox ran with "+path, "remove the cached runsc to have it built again, or install another; see the detail")
	}
	cache, err := prepare.CacheDir()
	if err == nil {
		if _, e := os.Stat(filepath.Join(cache, "bin", "runsc-"+prepare.RunscVersion)); e == nil {
			return Check{Name: "runsc", OK: true, Detail: "in the cache"}
		}
	}
	for _, p := range []string{"runsc", "go"} {
		if at, e := exec.LookPath(p); e == nil {
			return Check{Name: "runsc", OK: true, Detail: "can be had with " + at}
		}
	}
	return Check{Name: "runsc", Detail: "neither runsc nor Go to build it is installed", Fix: "install runsc, or Go 1.26 or newer"}
}

func disk(c Config) Check {
	least := c.MinFreeBytes
	if least == 0 {
		least = 5 << 30
	}
	dir := c.StateDir
	for dir != "" && dir != "/" && dir != "." {
		if _, err := os.Stat(dir); err == nil {
			break
		}
		dir = filepath.Dir(dir)
	}
	if dir == "" {
		dir = "."
	}
	var st unix.Statfs_t
	err := unix.Statfs(dir, &st)
	free := st.Bavail * uint64(st.Bsize)
	if err == nil && free < least {
		err = fmt.Errorf("%d MiB are free at %s, less than %d", free>>20, dir, least>>20)
	}
	return result("disk", err, fmt.Sprintf("%d GiB are free", free>>30), "free some space or put the state directory elsewhere")
}

func packages() Check {
	var missing []string
	for _, p := range []string{"apt-get", "dpkg-deb"} {
		if _, err := exec.LookPath(p); err != nil {
			missing = append(missing, p)
		}
	}
	var err error
	if len(missing) > 0 {
		err = fmt.Errorf("missing: %s", strings.Join(missing, ", "))
	}
	c := result("apt", err, "the built-in image can be made", "use images from a registry, or import one: the built-in image needs a Debian or Ubuntu host")
	c.Optional = true
	return c
}

func namespaces() Check {
	const name = "user namespaces"
	if setting("user/max_user_namespaces") == "0" {
		return Check{Name: name, Detail: "they are turned off", Fix: "sysctl user.max_user_namespaces=10000: a sandbox's root is then nobody on this host"}
	}
	if !rootless() {
		return Check{Name: name, OK: true, Detail: "available"}
	}
	const restricted = "kernel/apparmor_restrict_unprivileged_userns"
	if setting(restricted) == "1" {
		return Check{Name: name, Detail: "AppArmor gives those of common users no rights", Fix: "sysctl " + strings.ReplaceAll(restricted, "/", ".") + "=0, or an AppArmor profile with userns for runsc and the toolbox"}
	}
	// As a keeper is started: nothing but trying tells.
	program, err := exec.LookPath("true")
	if err == nil {
		cmd := exec.Command(program)
		cmd.SysProcAttr = launch.Attributes(true)
		err = cmd.Run()
	}
	return result(name, err, "this user may make them", "allow them to common users (sysctl kernel.unprivileged_userns_clone=1, or the container's seccomp profile), or run the worker as root")
}

// setting reads a kernel setting; empty where this kernel does not have it.
func setting(name string) string {
	data, err := os.ReadFile("/proc/sys/" + name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}
