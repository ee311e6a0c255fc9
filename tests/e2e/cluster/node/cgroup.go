package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// hierarchy is a tree of groups that this process is in. Its name is what /proc/self/cgroup calls it, "" for version 2.
type hierarchy struct{ name, mount, path string }

// dir is the group of this process as a directory.
func (h hierarchy) dir() string { return filepath.Join(h.mount, h.path) }

// hierarchies finds those that are mounted. The file is read at once: what it says changes while this process moves.
func hierarchies() ([]hierarchy, error) {
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var all []hierarchy
	for line := range strings.Lines(string(own)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			return nil, fmt.Errorf("/proc/self/cgroup has the line %q", line)
		}
		root, mount := mounted(string(mounts), parts[1])
		if mount == "" {
			continue
		}
		path, err := filepath.Rel(root, parts[2])
		if err != nil || strings.HasPrefix(path, "..") {
			path = "."
		}
		all = append(all, hierarchy{name: parts[1], mount: mount, path: path})
	}
	if len(all) == 0 {
		return nil, errors.New("no cgroup hierarchy is mounted")
	}
	return all, nil
}

// mounted is where a hierarchy is mounted, and which of its groups is seen there.
func mounted(mountinfo, name string) (root, mount string) {
	for line := range strings.Lines(mountinfo) {
		before, after, ok := strings.Cut(line, " - ")
		place, kind := strings.Fields(before), strings.Fields(after)
		if !ok || len(place) < 5 || len(kind) < 3 {
			continue
		}
		options := strings.Split(kind[2], ",")
		two := name == "" && kind[0] == "cgroup2"
		one := name != "" && kind[0] == "cgroup" && !slices.ContainsFunc(strings.Split(name, ","), func(c string) bool { return !slices.Contains(options, c) })
		if two || one {
			return place[3], place[4]
		}
	}
	return "", ""
}

// makeGroups makes a group below the one of this process in each hierarchy, by name of hierarchy.
func makeGroups(name string) (map[string]string, error) {
	all, err := hierarchies()
	if err != nil {
		return nil, err
	}
	made := map[string]string{}
	for _, h := range all {
		dir := filepath.Join(h.dir(), name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			return made, err
		}
		made[h.name] = dir
		// A new group of cpuset has no CPU and takes no process.
		if slices.Contains(strings.Split(h.name, ","), "cpuset") {
			for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
				value, err := os.ReadFile(filepath.Join(h.dir(), file))
				if err != nil {
					return made, err
				}
				if err := os.WriteFile(filepath.Join(dir, file), value, 0o644); err != nil {
					return made, err
				}
			}
		}
	}
	return made, nil
}

// enterGroups moves a process.
func enterGroups(groups map[string]string, pid int) error {
	for _, dir := range groups {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o644); err != nil {
			return fmt.Errorf("enter %s: %w", dir, err)
		}
	}
	return nil
}

// removeGroups removes groups with all below them, once the processes in them are gone.
func removeGroups(ctx context.Context, groups map[string]string) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		var left []string
		for _, dir := range groups {
			if !removeTree(dir) {
				left = append(left, dir)
			}
		}
		if len(left) == 0 {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("groups are left: %v: %w", left, ctx.Err())
		}
	}
}

// removeTree tells whether a group is gone. The files in it are the kernel's and go with it.
func removeTree(dir string) bool {
	var dirs []string
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return nil
	})
	slices.Reverse(dirs)
	for _, d := range dirs {
		_ = os.Remove(d)
	}
	_, err := os.Stat(dir)
	return errors.Is(err, os.ErrNotExist)
}
