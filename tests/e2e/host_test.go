package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/tests/e2e/stack"
)

func TestHostIsLeftAsItWas(t *testing.T) {
	needsHost(t)
	require.NoError(t, stack.Prepare(t), "what all tests share is there before")
	before := hostState(t)
	var during map[string]string
	state := ""
	t.Run("up, the quickstart, down", func(t *testing.T) {
		s := stack.Up(t)
		state = s.State
		quickstart(t, s)
		s.Ready(t)
		during = hostState(t)
	})
	after := hostState(t)
	for _, what := range []string{"processes of ours", "loop devices", "cgroups"} {
		require.Contains(t, during[what]+during["mounts"], marks[what], "%s would not be seen", what)
	}
	for what := range before {
		require.Equal(t, before[what], after[what], what)
	}
	for _, what := range []string{"network settings", "addresses", "links", "routes", "filters", "kernel settings", "mounts", "/etc", "apt"} {
		require.Equal(t, before[what], during[what], "%s while it runs", what)
	}
	require.NoDirExists(t, state)
}

// marks are what is seen of a running sandbox.
var marks = map[string]string{"processes of ours": "runsc", "loop devices": ".img", "cgroups": "sandtrail/st"}

// hostState is what a start could change on a host, by name.
func hostState(t *testing.T) map[string]string {
	t.Helper()
	run := func(name string, args ...string) string {
		if _, err := exec.LookPath(name); err != nil {
			return "no " + name
		}
		out, err := exec.CommandContext(t.Context(), name, args...).Output()
		if err != nil {
			return err.Error()
		}
		return string(out)
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	require.NoError(t, err)
	return map[string]string{
		"network settings":  settings(t, "/proc/sys/net"),
		"kernel settings":   settings(t, "/proc/sys/kernel"),
		"links":             run("ip", "-br", "link"),
		"addresses":         run("ip", "-br", "addr"),
		"routes":            run("ip", "route", "show", "table", "all"),
		"namespaces":        run("ip", "netns"),
		"filters":           run("iptables-save") + run("nft", "list", "ruleset"),
		"mounts":            string(mounts),
		"loop devices":      run("losetup", "-a"),
		"cgroups":           cgroups(t),
		"processes of ours": programs(t),
		"sockets":           listening(t),
		"/etc":              digest(t, "/etc"),
		"apt":               digest(t, "/var/lib/apt") + digest(t, "/var/lib/dpkg"),
		"/tmp":              builds.ReplaceAllString(names(t, "/tmp"), ""),
		"/run":              names(t, "/run") + names(t, "/var/run") + names(t, "/var/lib") + names(t, "/opt") + names(t, "/mnt") + names(t, "/"),
	}
}

// builds of somebody else may come and go meanwhile; nothing of ours runs the go command.
var builds = regexp.MustCompile(`(?m)^/tmp/go-(build|link-)\d+\n?`)

// settings reads every value of a tree of kernel settings but those that the kernel moves itself.
func settings(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil //nolint:nilerr // what cannot be read was not changed either
		}
		for _, moving := range []string{"random/", "ns_last_pid", "pty/nr", "nf_conntrack_count", "sched_domain"} {
			if strings.Contains(path, moving) {
				return nil
			}
		}
		if value, err := os.ReadFile(path); err == nil {
			fmt.Fprintf(&b, "%s=%s\n", path, strings.TrimSpace(string(value)))
		}
		return nil
	}))
	return b.String()
}

// digest is of the names, sizes, modes and times of change of the files of a tree.
func digest(t *testing.T, dir string) string {
	t.Helper()
	h := sha256.New()
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if os.IsNotExist(err) {
			return nil
		}
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		fmt.Fprintln(h, path, info.Size(), info.ModTime().UnixNano(), info.Mode())
		return nil
	}))
	return dir + " " + hex.EncodeToString(h.Sum(nil)) + "\n"
}

// cgroups are the groups that hold sandboxes.
func cgroups(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.Contains(path, "sandtrail/st") {
			fmt.Fprintln(&b, path)
		}
		return nil
	})
	return b.String()
}

// programs are the running processes of what sandtrail starts.
func programs(t *testing.T) string {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	require.NoError(t, err)
	var b strings.Builder
	for _, e := range entries {
		line, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err != nil {
			continue
		}
		program, _, _ := strings.Cut(string(line), "\x00")
		for _, of := range []string{"runsc", "toolbox", "sandtrail"} {
			if strings.HasPrefix(filepath.Base(program), of) {
				fmt.Fprintln(&b, e.Name(), strings.ReplaceAll(string(line), "\x00", " "))
				break
			}
		}
	}
	return b.String()
}

// listening are the addresses of listening TCP sockets.
func listening(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	for _, file := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		for line := range strings.Lines(string(data)) {
			if fields := strings.Fields(line); len(fields) > 3 && fields[3] == "0A" {
				fmt.Fprintln(&b, fields[1])
			}
		}
	}
	return b.String()
}

// names are the entries of a directory.
func names(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var b strings.Builder
	for _, e := range entries {
		fmt.Fprintln(&b, filepath.Join(dir, e.Name()))
	}
	return b.String()
}
