package cluster_test

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/tests/e2e/cluster"
	"github.com/sandtrail/sandtrail/tests/e2e/cluster/binaries"
)

func TestThreeTimesUpAndDownLeaveTheHostAsItWas(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: a real Kubernetes node")
	}
	_, err := binaries.Builder{Progress: nil}.Node(t.Context())
	require.NoError(t, err)
	dir, err := os.MkdirTemp("", "st-node-")
	require.NoError(t, err)
	before := hostState(t)
	for round := range 3 {
		begin := time.Now()
		c, err := cluster.StartNode(context.Background(), dir, binaries.Builder{}, false)
		require.NoError(t, err)
		up := time.Since(begin)
		ns := scratch(t, c, "cycle")
		claim(t, c, ns, "w")
		create(t, c, ns, hardened("p", "w", "sleep", "100000"))
		require.Zero(t, sh(t, c, ns, "p", "echo x > /workspace/x").Code)
		if round == 0 {
			during := hostState(t)
			require.Equal(t, before["settings"], during["settings"], "while it is up")
			require.NotEqual(t, before["links"], during["links"], "a change would not be seen")
			require.NotEqual(t, before["routes"], during["routes"], "a change would not be seen")
			require.NotEqual(t, before["cgroups"], during["cgroups"], "a change would not be seen")
			require.Equal(t, before["filters"], during["filters"], "while it is up")
			require.Equal(t, before["mounts"], during["mounts"], "while it is up")
		}
		begin = time.Now()
		require.NoError(t, c.Down(context.Background()))
		t.Logf("nothing -> node ready %s; down %s", up.Round(time.Millisecond), time.Since(begin).Round(time.Millisecond))
		for what, after := range hostState(t) {
			require.Equal(t, before[what], after, what)
		}
	}
	require.NoError(t, os.RemoveAll(dir), "nothing is mounted there any more")
}

// hostState is what a node could change on a host, by name. Of what others change all the time only what a node makes is looked at.
func hostState(t *testing.T) map[string]string {
	t.Helper()
	run := func(name string, args ...string) string {
		if _, err := exec.LookPath(name); err != nil {
			return "no " + name
		}
		out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
		if err != nil {
			return err.Error()
		}
		return string(out)
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	require.NoError(t, err)
	return map[string]string{
		"settings":  settings(t),
		"links":     run("ip", "-br", "link"),
		"addresses": run("ip", "-br", "addr"),
		"routes":    run("ip", "route", "show", "table", "all"),
		"rules":     run("ip", "rule"),
		"filters":   run("iptables-save") + run("nft", "list", "ruleset"),
		"mounts":    lines(string(mounts), "st-node", "st-shared", t.Name(), "overlay", "shm", "kubelet", "containerd"),
		"cgroups":   groups(t),
		"/run":      names(t, "/run") + names(t, "/var/lib") + names(t, "/var/log") + names(t, "/etc") + names(t, "/opt"),
		"hostname":  run("hostname"),
	}
}

func lines(text string, marks ...string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if slices.ContainsFunc(marks, func(m string) bool { return strings.Contains(line, m) }) {
			b.WriteString(line)
		}
	}
	return b.String()
}

// settings reads every setting of the kernel but those that the kernel moves itself.
func settings(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	for _, dir := range []string{"/proc/sys/net", "/proc/sys/kernel", "/proc/sys/vm"} {
		require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return nil //nolint:nilerr // what cannot be read was not changed either
			}
			for _, own := range []string{"random/", "ns_last_pid", "pty/nr", "nf_conntrack_count", "sched_domain", "/stnode"} {
				if strings.Contains(path, own) {
					return nil
				}
			}
			if value, err := os.ReadFile(path); err == nil {
				fmt.Fprintf(&b, "%s=%s\n", path, strings.TrimSpace(string(value)))
			}
			return nil
		}))
	}
	return b.String()
}

func groups(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.Contains(path, "sandtrail-node") {
			fmt.Fprintln(&b, path)
		}
		return nil
	})
	return b.String()
}

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
