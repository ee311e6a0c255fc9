package check_test

import (
	"bytes"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/tests/e2e/chaos/check"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/evidence"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/journal"
	"github.com/sandtrail/sandtrail/tests/e2e/stack"
)

// deep copies a history.
func deep(h journal.History) journal.History {
	data, err := json.Marshal(h)
	if err != nil {
		panic(err)
	}
	var c journal.History
	if err := json.Unmarshal(data, &c); err != nil {
		panic(err)
	}
	return c
}

// plantOnHost leaves real things of a destroyed sandbox on the host, with the names that they have, while nobody is there who would
// remove them, and has them collected.
func plantOnHost(t *testing.T, s *stack.Stack, h journal.History, e evidence.Evidence) {
	c := &copyOf{t: t, h: h, e: e}
	id := c.made("create-1")
	s.Kill("lifecycle")
	t.Cleanup(func() { s.Respawn("lifecycle") })
	run := func(name string, args ...string) string {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
		require.NoError(t, err, "%s %v: %s", name, args, out)
		return strings.TrimSpace(string(out))
	}
	sources := evidence.Sources{
		JS: s.JS, ClickHouse: s.ClickHouse, StateDirs: map[string]string{worker: s.State}, Limits: e.Limits,
	}
	sources.Limits.Settle = time.Second
	found := func() map[evidence.Kind]string {
		now, err := evidence.Collect(t.Context(), sources, check.Open)
		require.NoError(t, err)
		kinds := map[evidence.Kind]string{}
		for _, r := range now.Hosts[0].Found {
			if r.Sandbox == id && r.Kind != evidence.Workspace {
				kinds[r.Kind] = r.Name
			}
		}
		leaks := 0
		for _, v := range check.All(journal.History{}, now) {
			if v.Invariant == check.NoLeak && strings.Contains(v.Subject, id) {
				leaks++
			}
		}
		require.GreaterOrEqual(t, leaks, len(kinds), "each one is a violation")
		require.Equal(t, len(kinds) == 0, now.Settled.Agreed, "%+v", now.Settled)
		return kinds
	}
	require.Empty(t, found(), "nothing is there before")

	dir := filepath.Join(s.State, "sandboxes", id)
	undo := []func(){}
	plants := []struct {
		kind  evidence.Kind
		plant func()
	}{
		{evidence.Directory, func() {
			require.NoError(t, os.MkdirAll(filepath.Join(dir, "desk"), 0o700))
			undo = append(undo, func() { require.NoError(t, os.RemoveAll(dir)) })
		}},
		{evidence.File, func() {
			path := filepath.Join(s.State, "locks", id)
			require.NoError(t, os.WriteFile(path, nil, 0o600))
			undo = append(undo, func() { require.NoError(t, os.Remove(path)) })
		}},
		{evidence.Loop, func() {
			device := run("losetup", "--find", "--show", filepath.Join(s.State, "workspaces", id+".img"))
			undo = append(undo, func() { run("losetup", "-d", device) })
		}},
		{evidence.Mount, func() {
			run("mount", "-t", "tmpfs", "left", filepath.Join(dir, "desk"))
			undo = append(undo, func() { run("umount", filepath.Join(dir, "desk")) })
		}},
		{evidence.Socket, func() {
			l, err := net.Listen("unix", filepath.Join(dir, "k.sock"))
			require.NoError(t, err)
			undo = append(undo, func() { require.NoError(t, l.Close()) })
		}},
		{evidence.Cgroup, func() {
			path := cgroupOf(t, "st"+strings.ReplaceAll(id, "-", ""))
			require.NoError(t, os.MkdirAll(path, 0o755))
			undo = append(undo, func() { require.NoError(t, os.Remove(path)) })
		}},
		{evidence.Process, func() { undo = append(undo, sleeper(t, s.State, id, 0)) }},
		{evidence.Netns, func() { undo = append(undo, sleeper(t, s.State, id, syscall.CLONE_NEWNET)) }},
	}
	defer func() {
		for i := range undo {
			undo[len(undo)-1-i]()
		}
		require.Empty(t, found(), "nothing is there afterwards")
	}()
	for _, p := range plants {
		p.plant()
		have := found()
		require.Contains(t, have, p.kind)
		t.Logf("%s: %s", p.kind, have[p.kind])
	}
}

// cgroupOf is a group beside those of real sandboxes.
func cgroupOf(t *testing.T, name string) string {
	t.Helper()
	for _, controller := range []string{"memory", "."} {
		home := filepath.Join("/sys/fs/cgroup", controller, "sandtrail")
		if _, err := os.Stat(home); err == nil {
			return filepath.Join(home, name)
		}
	}
	out, err := exec.CommandContext(t.Context(), "find", "/sys/fs/cgroup", "-type", "d", "-name", "st*", "-path", "*sandtrail/*").Output()
	require.NoError(t, err)
	first, _, _ := bytes.Cut(out, []byte("\n"))
	require.NotEmpty(t, first, "no group of a sandbox is there")
	return filepath.Join(filepath.Dir(string(first)), name)
}

// sleeper is a process that looks like a keeper of a sandbox, and how to end it.
func sleeper(t *testing.T, state, id string, namespaces uintptr) func() {
	t.Helper()
	log, err := os.OpenFile(filepath.Join(state, "left.log"), os.O_CREATE|os.O_WRONLY, 0o600)
	require.NoError(t, err)
	defer log.Close()
	cmd := exec.Command("sleep", "3600")
	cmd.Env, cmd.Stderr = []string{"SANDTRAIL_KEEPER=" + id}, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: namespaces, Pdeathsig: syscall.SIGKILL}
	require.NoError(t, cmd.Start())
	return func() {
		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait() // it was killed
	}
}
