package keeper_test

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/toolbox/cgroup"
	"github.com/sandtrail/sandtrail/toolbox/client"
	"github.com/sandtrail/sandtrail/toolbox/keeper/keepertest"
	"github.com/sandtrail/sandtrail/toolbox/launch"
)

// processes of this host that have the sandbox's runtime id or directory in their command line.
func processes(t *testing.T, b *keepertest.Box) []string {
	t.Helper()
	entries, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	var found []string
	for _, e := range entries {
		line, _ := os.ReadFile(e)
		if bytes.Contains(line, []byte(b.Spec.RuntimeID)) {
			found = append(found, e+" "+string(bytes.ReplaceAll(line, []byte{0}, []byte(" "))))
		}
	}
	return found
}

// sentryPID finds the sentry among them.
func sentryPID(t *testing.T, b *keepertest.Box) int {
	t.Helper()
	for _, p := range processes(t, b) {
		if strings.Contains(p, " boot ") {
			pid, err := strconv.Atoi(strings.Split(p, "/")[2])
			require.NoError(t, err)
			return pid
		}
	}
	t.Fatal("no sentry")
	return 0
}

// clean says that nothing of the sandbox is left on the host.
func clean(t *testing.T, b *keepertest.Box) {
	t.Helper()
	require.Eventually(t, func() bool { return len(processes(t, b)) == 0 }, 10*time.Second, 10*time.Millisecond, "%v", processes(t, b))
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(t, err)
	require.NotContains(t, string(mounts), b.Spec.SandboxID)
	require.Eventually(t, func() bool {
		backing, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
		require.NoError(t, err)
		for _, f := range backing {
			if path, _ := os.ReadFile(f); strings.Contains(string(path), b.Spec.SandboxID) {
				return false
			}
		}
		return true
	}, 10*time.Second, 10*time.Millisecond, "a loop device is left")
}

func noGroup(t *testing.T, b *keepertest.Box) {
	t.Helper()
	g, err := cgroup.Open(b.Spec.Cgroup)
	require.NoError(t, err)
	for _, f := range g.Procs() {
		require.NoDirExists(t, filepath.Dir(f))
	}
}

func TestShutdownLeavesNothing(t *testing.T) {
	// A directory longer than a socket's path may be.
	state := filepath.Join(t.TempDir(), strings.Repeat("long", 30))
	b := keepertest.Launch(t, state, keepertest.Spec(t, state))
	require.True(t, b.Result.OK, "%s", b.Log)
	r := &toolboxv1.Start{ExecId: keepertest.NewID(), Argv: []string{"sh", "-c", family}}
	started(t, b, r)
	s, err := b.Attach(t.Context(), &toolboxv1.Attach{ExecId: r.ExecId, StdoutOffset: 6})
	require.NoError(t, err)
	defer s.Close()
	reply, err := b.Shutdown(t.Context(), &toolboxv1.Shutdown{GraceMs: 100})
	require.NoError(t, err)
	require.NotZero(t, reply.Usage.CpuMs)
	require.NotZero(t, reply.UptimeMs)
	e, err := s.Recv()
	require.NoError(t, err)
	require.Equal(t, "sandbox_destroyed", e.GetEnd().GetReason())
	noGroup(t, b)
	b.Wait(t)
	clean(t, b)
	left, err := os.ReadDir(b.Spec.Dir)
	require.NoError(t, err)
	require.Empty(t, left)
	require.NotContains(t, b.Log.String(), "do-not-log")
}

// Whoever kills the keeper kills the sandbox; what is left for the driver is the cgroup.
func TestKilledKeeperTakesTheSandboxAlong(t *testing.T) {
	b := keepertest.Start(t)
	started(t, b, &toolboxv1.Start{ExecId: keepertest.NewID(), Argv: []string{"sh", "-c", family}})
	require.NotEmpty(t, processes(t, b))
	require.NoError(t, syscall.Kill(b.PID(), syscall.SIGKILL))
	b.Wait(t)
	clean(t, b)
	g, err := cgroup.Load(filepath.Join(b.Spec.Dir, "cgroup.json"))
	require.NoError(t, err)
	require.NoError(t, g.Kill(time.Second))
	require.NoError(t, g.Remove())
	noGroup(t, b)
}

func TestKilledSentryIsSaid(t *testing.T) {
	b := keepertest.Start(t)
	r := &toolboxv1.Start{ExecId: keepertest.NewID(), Argv: []string{"sh", "-c", "echo ready; sleep 600"}}
	started(t, b, r)
	pool := client.NewPool(func(id string) func(context.Context) (net.Conn, error) { return client.KeeperDialer(b.State, id) })
	defer pool.Close()
	_, err := pool.Client(b.Spec.SandboxID).Hello(t.Context(), &toolboxv1.Hello{})
	require.NoError(t, err)
	require.True(t, pool.Alive(b.Spec.SandboxID))
	require.NoError(t, syscall.Kill(sentryPID(t, b), syscall.SIGKILL))
	o := b.Follow(t, r.ExecId, 0, 0)
	require.Equal(t, "sandbox_lost", o.Reason)
	require.Eventually(t, func() bool { return !pool.Alive(b.Spec.SandboxID) }, 20*time.Second, 5*time.Millisecond)
	require.Equal(t, "ready\n", o.Stdout)
	require.EqualValues(t, 137, o.ExitCode, "0 would read as success")
	h, err := b.Hello(t.Context(), &toolboxv1.Hello{})
	require.NoError(t, err)
	require.False(t, h.Alive)
	require.Equal(t, "sandbox_lost", h.Reason)
	_, err = b.Client.Start(t.Context(), &toolboxv1.Start{ExecId: keepertest.NewID(), Argv: []string{"true"}})
	require.Equal(t, "sandbox_lost", failure(t, err).Reason)
	_, err = b.Shutdown(t.Context(), &toolboxv1.Shutdown{})
	require.NoError(t, err)
	b.Wait(t)
	clean(t, b)
	noGroup(t, b)
}

func TestFailedStartLeavesNothing(t *testing.T) {
	for name, change := range map[string]func(*launch.Spec){
		"no workspace": func(s *launch.Spec) { s.Workspace += ".none" },
		"no runsc":     func(s *launch.Spec) { s.Runsc = "/nosuch" },
		"no image":     func(s *launch.Spec) { s.Rootfs = "/nosuch" },
		"broken image": func(s *launch.Spec) { require.NoError(t, os.WriteFile(s.Workspace, make([]byte, 1<<20), 0o600)) },
	} {
		t.Run(name, func(t *testing.T) {
			state := t.TempDir()
			spec := keepertest.Spec(t, state)
			change(&spec)
			b := keepertest.Launch(t, state, spec)
			require.False(t, b.Result.OK)
			require.Equal(t, "runtime_failed", b.Result.Reason)
			require.NotContains(t, b.Result.Message, "/")
			b.Wait(t)
			clean(t, b)
			noGroup(t, b)
			left, err := os.ReadDir(spec.Dir)
			require.NoError(t, err)
			require.Empty(t, left)
		})
	}
}

// TERM at any time, also right behind the result, ends everything in order.
func TestTermLeavesNothing(t *testing.T) {
	for range 3 {
		b := keepertest.Start(t)
		require.NoError(t, syscall.Kill(b.PID(), syscall.SIGTERM))
		b.Wait(t)
		clean(t, b)
		noGroup(t, b)
		left, err := os.ReadDir(b.Spec.Dir)
		require.NoError(t, err)
		require.Empty(t, left)
	}
}

// Whoever started the keeper may be killed before it hears the result: the sandbox stays, for the next one to find.
func TestNobodyHearsTheResult(t *testing.T) {
	state := t.TempDir()
	b := keepertest.Orphan(t, state, keepertest.Spec(t, state))
	require.Eventually(t, func() bool {
		h, err := b.Hello(t.Context(), &toolboxv1.Hello{})
		return err == nil && h.Alive
	}, 20*time.Second, 10*time.Millisecond)
	require.Equal(t, "ok\n", b.Sh(t, "echo ok").Stdout)
}

// stuck is a runsc that hangs, or one whose sentry does.
var stuck = map[string]string{
	"runsc":  "sleep 601 & sleep 602",
	"sentry": `"$RUNSC" "$@" && kill -STOP $(cat /mnt/sentry.pid)`,
}

func TestHangingStartEnds(t *testing.T) {
	for name, script := range stuck {
		t.Run(name, func(t *testing.T) {
			state := t.TempDir()
			spec := keepertest.Spec(t, state)
			wrapper := filepath.Join(t.TempDir(), "runsc")
			require.NoError(t, os.WriteFile(wrapper, []byte("#!/bin/sh\nRUNSC="+spec.Runsc+"\n"+script+"\n"), 0o755)) //nolint:gosec // a program
			spec.Runsc, spec.StartTimeoutMs = wrapper, 1500
			began := time.Now()
			b := keepertest.Launch(t, state, spec)
			require.False(t, b.Result.OK)
			require.Equal(t, "start_deadline", b.Result.Reason)
			require.Less(t, time.Since(began), 10*time.Second)
			b.Wait(t)
			t.Logf("%s", b.Log)
			clean(t, b)
			noGroup(t, b)
		})
	}
}
