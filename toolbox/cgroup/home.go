package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// On version 2 a group that gives controllers to its children may have no processes of its own. So the group that holds the
// sandboxes' groups, their home, is found or made before the first of them: the processes that are in it move into a leaf.

// leaf is the name of the child that they move to. Nothing else has that name, so whoever is in it knows its home.
const leaf = "sandtrail-services"

// given are the controllers that sandboxes' groups need.
var given = []string{"memory", "cpu", "pids"}

// plan is what makes a home.
type plan struct {
	home string
	// evacuate: its processes have to move into the leaf. enable: its children do not have the controllers yet.
	evacuate, enable bool
}

// Settle makes this process's place fit for groups with limits, where version 2 has the controllers: it is called once, before
// any group is made. It moves no process but this one, what it started, and, in a container, what else is in its topmost group.
// Where it is called again, or version 1 has the controllers, it does nothing.
func Settle() error {
	own, err := ownGroup()
	if err != nil || own == "" {
		return err
	}
	p, err := planFor(own)
	if err != nil {
		return err
	}
	if p.evacuate {
		if err := evacuate(p.home); err != nil {
			return err
		}
	}
	if !p.enable {
		return nil
	}
	return enable(p.home)
}

// Settled says without doing anything whether Settle would have nothing to do; an error is one that it would return.
func Settled() (bool, error) {
	own, err := ownGroup()
	if err != nil || own == "" {
		return err == nil, err
	}
	p, err := planFor(own)
	return err == nil && !p.enable, err
}

// ownGroup is the directory of this process's group on version 2; empty where version 1 has the controllers.
func ownGroup() (string, error) {
	g, err := find("some")
	if err != nil || !g.unified {
		return "", err
	}
	return filepath.Dir(g.v2), nil
}

// planFor goes up from a group to the nearest that can be a home.
func planFor(own string) (plan, error) {
	for d := own; ; d = filepath.Dir(d) {
		top := !isGroup(filepath.Dir(d))
		switch {
		case enabled(d):
			return plan{home: d}, nil
		case filepath.Base(d) == leaf || !has(d, "cgroup.controllers"):
			// A leaf is nobody's home, and what a group does not have it cannot give.
		case top && !exists(filepath.Join(d, "cgroup.type")):
			// Of all groups only the host's topmost has no type; it may have processes and children with controllers.
			return plan{home: d, enable: true}, nil
		case top, d == own && mayEvacuate(d):
			return plan{home: d, evacuate: true, enable: true}, nil
		case d != own && len(processes(d)) == 0 && (marked(d) || filepath.Base(own) == leaf):
			return plan{home: d, enable: true}, nil
		}
		if top {
			return plan{}, fmt.Errorf("no cgroup from %s upwards can limit memory, cpu and pids for its children: delegate them to this service (systemd: Delegate=yes)", own)
		}
	}
}

// mayEvacuate: the group is for this process alone. Where the one above was delegated and this one made in it for us, nothing has
// to move: systemd could start no process here any more.
func mayEvacuate(dir string) bool {
	up := filepath.Dir(dir)
	return owned(dir) && onlyOurs(dir) && (!marked(up) || len(processes(up)) > 0)
}

// homeOf is where a process in the group finds its home, made or not.
func homeOf(own string) string {
	for d := own; isGroup(d); d = filepath.Dir(d) {
		if enabled(d) {
			return d
		}
	}
	if filepath.Base(own) == leaf {
		return filepath.Dir(own)
	}
	return own
}

func isGroup(dir string) bool { return exists(filepath.Join(dir, "cgroup.procs")) }

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// enabled: the group's children have the controllers.
func enabled(dir string) bool { return has(dir, "cgroup.subtree_control") }

func has(dir, file string) bool {
	b, err := os.ReadFile(filepath.Join(dir, file))
	have := strings.Fields(string(b))
	return err == nil && !slices.ContainsFunc(given, func(c string) bool { return !slices.Contains(have, c) })
}

func enable(dir string) error {
	if err := write(dir, "cgroup.subtree_control", "+"+strings.Join(given, " +")); err != nil {
		return fmt.Errorf("give memory, cpu and pids to the children of a cgroup: %w", err)
	}
	return nil
}

// processes of a group itself. 0 stands for one that this process cannot see.
func processes(dir string) []int {
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return []int{0}
	}
	var pids []int
	for field := range strings.FieldsSeq(string(b)) {
		pid, _ := strconv.Atoi(field)
		pids = append(pids, pid)
	}
	return pids
}

// onlyOurs: every process of the group is this one or below it.
func onlyOurs(dir string) bool {
	return !slices.ContainsFunc(processes(dir), func(pid int) bool {
		const generations = 64
		for range generations {
			if pid == os.Getpid() {
				return false
			}
			if pid = Parent(pid); pid <= 1 {
				break
			}
		}
		return true
	})
}

// Parent is the parent of a process; 0 where the process is gone.
func Parent(pid int) int {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	end := bytes.LastIndexByte(stat, ')')
	if err != nil || end < 0 {
		return 0
	}
	fields := bytes.Fields(stat[end+1:])
	if len(fields) < 2 {
		return 0
	}
	n, _ := strconv.Atoi(string(fields[1]))
	return n
}

// owned: this process may change the group.
func owned(dir string) bool {
	uid := os.Geteuid()
	info, err := os.Lstat(filepath.Join(dir, "cgroup.subtree_control"))
	if err != nil {
		return false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return uid == 0 || ok && int(st.Uid) == uid
}

// marked: systemd has delegated the group.
func marked(dir string) bool {
	value := make([]byte, 1)
	for _, name := range []string{"trusted.delegate", "user.delegate"} {
		if n, err := syscall.Getxattr(dir, name, value); err == nil && n == 1 && value[0] == '1' {
			return owned(dir)
		}
	}
	return false
}

// evacuateWithin bounds the race with processes that start others.
const evacuateWithin = 5 * time.Second

// evacuate moves every process of the group into its leaf.
func evacuate(dir string) error {
	to := filepath.Join(dir, leaf)
	if err := os.Mkdir(to, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make cgroup: %w", err)
	}
	for deadline := time.Now().Add(evacuateWithin); ; {
		left := processes(dir)
		if len(left) == 0 {
			return nil
		}
		var errs []error
		for _, pid := range left {
			// One that has ended meanwhile is no error.
			if err := write(to, "cgroup.procs", strconv.Itoa(pid)); err != nil && !errors.Is(err, syscall.ESRCH) {
				errs = append(errs, err)
			}
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("move %d processes out of a cgroup: %w", len(left), errors.Join(errs...))
		}
	}
}
