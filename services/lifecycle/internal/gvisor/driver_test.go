package gvisor

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/runtime"
	"github.com/sandtrail/sandtrail/libs/runtime/runtimetest"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/debian"
)

func TestContract(t *testing.T) {
	runtimetest.Run(t, func(t *testing.T) runtimetest.Fixture {
		h := newHost(t, t.TempDir())
		return runtimetest.Fixture{Driver: h, Image: debian.Reference, Exec: h.exec, Leftovers: h.leftovers}
	})
}

func spec() runtime.Spec {
	id := ids.New()
	return runtime.Spec{ID: id, Tenant: "acme", Image: debian.Reference, Env: map[string]string{"CANARY": "canary-" + id}, WorkspaceBytes: 64 << 20}
}

func create(t testing.TB, h *host, s runtime.Spec) runtime.Created {
	t.Helper()
	t.Cleanup(func() {
		_, err := h.Destroy(context.Background(), s.ID)
		require.NoError(t, err)
	})
	c, err := h.Create(bounded(t), s)
	require.NoError(t, err)
	return c
}

// TestKilledProcesses: whatever dies without a word, Destroy leaves nothing, and Create makes a new sandbox on the same workspace.
func TestKilledProcesses(t *testing.T) {
	for name, victims := range map[string]func(h *host, id string) []int{
		"keeper": func(_ *host, id string) []int { return keepers(id) },
		"sentry": func(h *host, id string) []int { return sandboxPids(t, h, id) },
		"everything": func(h *host, id string) []int {
			return append(keepers(id), sandboxPids(t, h, id)...)
		},
		// It cannot notice that its keeper is gone.
		"keeper of a stopped sentry": func(h *host, id string) []int {
			for _, pid := range sandboxPids(t, h, id) {
				_ = unix.Kill(pid, unix.SIGSTOP)
			}
			return keepers(id)
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, t.TempDir())
			s := spec()
			create(t, h, s)
			_, exit, err := h.exec(bounded(t), s.ID, "echo kept > /workspace/mark; sync; sleep 600 &")
			require.NoError(t, err)
			require.Zero(t, exit)
			pids := victims(h, s.ID)
			require.NotEmpty(t, pids)
			for _, pid := range pids {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
			require.Eventually(t, func() bool {
				st, err := h.Inspect(t.Context(), s.ID)
				return err == nil && st.Exists && !st.Alive && st.Reason == string(fault.ReasonSandboxLost) && st.Message != "" && st.Tenant == "acme"
			}, 10*time.Second, 10*time.Millisecond)

			again, err := h.Create(bounded(t), s)
			require.NoError(t, err)
			require.Equal(t, runtimeID(s.ID), again.RuntimeID)
			out, _, err := h.exec(bounded(t), s.ID, "cat /workspace/mark")
			require.NoError(t, err)
			require.Equal(t, "kept\n", out)

			for _, pid := range victims(h, s.ID) {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
			_, err = h.Destroy(bounded(t), s.ID)
			require.NoError(t, err)
			require.Empty(t, h.leftovers(s.ID))
		})
	}
}

// TestHungKeeper: a keeper that lives and does not answer is no lost sandbox, and does not hold a destroy up for ever.
func TestHungKeeper(t *testing.T) {
	h := newHost(t, t.TempDir())
	s := spec()
	create(t, h, s)
	for _, pid := range keepers(s.ID) {
		require.NoError(t, unix.Kill(pid, unix.SIGSTOP))
	}
	_, err := h.Inspect(t.Context(), s.ID)
	require.True(t, fault.Is(err, fault.ReasonToolboxUnavailable), "%v", err)

	before := keepers(s.ID)
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = h.Create(short, s)
	require.True(t, fault.Is(err, fault.ReasonToolboxUnavailable), "%v", err)
	require.Equal(t, before, keepers(s.ID), "a create ends no sandbox that may be working")

	u, err := h.Destroy(bounded(t), s.ID)
	require.NoError(t, err)
	if !rootless {
		require.Positive(t, u.CPUMillis, "the cgroup still knew")
	}
	require.Empty(t, h.leftovers(s.ID))
}

// sandboxPids are the processes of a sandbox, its keeper apart.
func sandboxPids(t *testing.T, h *host, id string) []int {
	t.Helper()
	if rootless {
		return processes(runtimeID(id))
	}
	g, err := h.group(id)
	require.NoError(t, err)
	return pidsIn(g.Procs())
}

const helperState = "SANDTRAIL_TEST_CREATE_IN"

// TestHelperCreate is a lifecycle process for TestKilledLifecycle.
func TestHelperCreate(t *testing.T) {
	state := os.Getenv(helperState)
	if state == "" {
		return
	}
	h := newHost(t, state)
	s := spec()
	s.ID = os.Getenv("SANDTRAIL_TEST_ID")
	require.NoError(t, os.WriteFile(filepath.Join(state, "begun"), nil, 0o600))
	_, err := h.Create(t.Context(), s)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(state, "ready"), nil, 0o600))
	<-t.Context().Done()
}

// TestKilledLifecycle kills the process that called Create at points of the start. Another one then destroys without leaving
// anything, or creates and has a working sandbox.
func TestKilledLifecycle(t *testing.T) {
	points := map[string]func(h *host, id string) bool{
		"directory": func(h *host, id string) bool { _, err := os.Lstat(h.dir(id)); return err == nil },
		"keeper":    func(_ *host, id string) bool { return len(keepers(id)) > 0 },
		"cgroup": func(h *host, id string) bool {
			_, err := os.Lstat(filepath.Join(h.dir(id), "cgroup.json"))
			return err == nil
		},
		"sentry": func(h *host, id string) bool { return len(sandboxPids(t, h, id)) > 2 },
		"keeper.pid": func(h *host, id string) bool {
			_, err := os.Lstat(filepath.Join(h.dir(id), "keeper.pid"))
			return err == nil
		},
		"ready": func(h *host, _ string) bool { _, err := os.Lstat(filepath.Join(h.state, "ready")); return err == nil },
	}
	for name, reached := range points {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, t.TempDir())
			id := ids.New()
			cmd := exec.Command(os.Args[0], "-test.run=^TestHelperCreate$")
			cmd.Env = append(os.Environ(), helperState+"="+h.state, "SANDTRAIL_TEST_ID="+id)
			require.NoError(t, cmd.Start())
			deadline := time.Now().Add(60 * time.Second)
			for !reached(h, id) {
				require.True(t, time.Now().Before(deadline))
			}
			require.NoError(t, cmd.Process.Kill())
			_ = cmd.Wait()

			s := spec()
			s.ID = id
			create(t, h, s)
			out, _, err := h.exec(bounded(t), id, "echo works")
			require.NoError(t, err)
			require.Equal(t, "works\n", out)
			_, err = h.Destroy(bounded(t), id)
			require.NoError(t, err)
			require.Empty(t, h.leftovers(id))
		})
	}
}

func pidsIn(files []string) []int {
	var pids []int
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		for field := range strings.FieldsSeq(string(data)) {
			pid := 0
			for _, c := range field {
				pid = pid*10 + int(c-'0')
			}
			if !slices.Contains(pids, pid) {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// TestRestart: a new driver on the same state finds a sandbox that an earlier one made, and its program still runs.
func TestRestart(t *testing.T) {
	state := t.TempDir()
	s := spec()
	first := newHost(t, state)
	create(t, first, s)
	second := newHost(t, state)
	out, _, err := second.exec(bounded(t), s.ID, "echo $CANARY")
	require.NoError(t, err)
	require.Equal(t, "canary-"+s.ID+"\n", out)
	all, err := second.List(t.Context())
	require.NoError(t, err)
	require.Len(t, all, 1)
	require.True(t, all[0].Alive)
}

// TestNoSecretOnDisk: the values of the environment are in no file of the state directory and in no process's arguments.
func TestNoSecretOnDisk(t *testing.T) {
	h := newHost(t, t.TempDir())
	s := spec()
	create(t, h, s)
	out, err := exec.Command("grep", "-r", "-l", "-s", "--devices=skip", "--exclude=*.img", s.Env["CANARY"], h.state).CombinedOutput()
	require.Error(t, err, string(out))
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	for _, l := range lines {
		if line, err := os.ReadFile(l); err == nil {
			require.NotContains(t, string(line), s.Env["CANARY"])
		}
	}
}

// TestLongState: a state directory deeper than a socket's path may be long.
func TestLongState(t *testing.T) {
	h := newHost(t, filepath.Join(t.TempDir(), strings.Repeat("long/", 30)))
	s := spec()
	create(t, h, s)
	out, _, err := h.exec(bounded(t), s.ID, "python3 -c 'print(6 * 7)'")
	require.NoError(t, err)
	require.Equal(t, "42\n", out)
}

// TestImageInSandbox: what agents expect of the built-in image works in a sandbox of it.
func TestImageInSandbox(t *testing.T) {
	h := newHost(t, t.TempDir())
	s := spec()
	create(t, h, s)
	for _, command := range []string{
		"git init -q . && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x && git log --oneline | grep x",
		"curl --version", "python3 -m venv /tmp/v && /tmp/v/bin/python -c 'import pip'", "pip --version",
		"python3 -c 'import ssl, sqlite3, ctypes, zoneinfo; ssl.create_default_context(); zoneinfo.ZoneInfo(\"Europe/Berlin\")'",
		"test $(id -un) = sandbox", "echo x > ~/x", "awk 'BEGIN { exit 0 }'", "locale | grep LANG=C.UTF-8", "echo '{\"a\":1}' | jq .a",
		"test -w /workspace", "! touch /usr/x 2>/dev/null", "ps aux", "echo x > /tmp/x",
	} {
		out, exit, err := h.exec(bounded(t), s.ID, command)
		require.NoError(t, err, command)
		require.Zero(t, exit, "%s: %s", command, out)
	}
	// A program that ends without flushing has printed what it printed.
	out, _, err := h.exec(bounded(t), s.ID, "python3 -c 'import os; print(\"seen\"); os._exit(0)'")
	require.NoError(t, err)
	require.Equal(t, "seen\n", out)
}
