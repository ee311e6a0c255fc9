package process_test

import (
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/tests/e2e/cluster/process"
)

// runner is what a Set and a Remote have in common.
type runner interface {
	Start(ctx context.Context, spec process.Spec) error
	Signal(ctx context.Context, name string, sig syscall.Signal) error
	Wait(ctx context.Context, name string) error
	Slow(ctx context.Context, name string, pause, run time.Duration) error
	Status(ctx context.Context) ([]process.Status, error)
	Run(ctx context.Context, argv ...string) (string, error)
}

// each runs a test on a set of this process and on one behind a socket.
func each(t *testing.T, test func(t *testing.T, r runner)) {
	t.Helper()
	t.Run("here", func(t *testing.T) {
		s := process.NewSet()
		t.Cleanup(func() { require.NoError(t, s.Stop(context.Background())) })
		test(t, s)
	})
	t.Run("behind a socket", func(t *testing.T) {
		s := process.NewSet()
		t.Cleanup(func() { require.NoError(t, s.Stop(context.Background())) })
		dir, err := os.MkdirTemp("", "st-set-")
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
		l, err := net.Listen("unix", filepath.Join(dir, "s"))
		require.NoError(t, err)
		server := &http.Server{Handler: process.Handler(s)}
		go func() { _ = server.Serve(l) }()
		t.Cleanup(func() { _ = server.Close() })
		test(t, process.Dial(filepath.Join(dir, "s")))
	})
}

func status(t *testing.T, r runner, name string) process.Status {
	t.Helper()
	all, err := r.Status(t.Context())
	require.NoError(t, err)
	for _, s := range all {
		if s.Name == name {
			return s
		}
	}
	t.Fatalf("%s is not among %v", name, all)
	return process.Status{}
}

func sleeper(t *testing.T) process.Spec {
	t.Helper()
	return process.Spec{Name: "p", Argv: []string{"sleep", "1000"}, Log: filepath.Join(t.TempDir(), "log")}
}

func TestAProgramLivesEndsAndStartsAgain(t *testing.T) {
	each(t, func(t *testing.T, r runner) {
		spec := sleeper(t)
		require.NoError(t, r.Start(t.Context(), spec))
		require.True(t, status(t, r, "p").Running)
		require.Error(t, r.Start(t.Context(), spec), "it runs")
		require.NoError(t, r.Signal(t.Context(), "p", syscall.SIGKILL))
		require.NoError(t, r.Wait(t.Context(), "p"))
		s := status(t, r, "p")
		require.False(t, s.Running)
		require.Contains(t, s.Ended, "killed")
		require.Equal(t, spec, s.Spec)
		require.NoError(t, r.Start(t.Context(), s.Spec))
		require.True(t, status(t, r, "p").Running)
		short, stop := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer stop()
		require.Error(t, r.Wait(short, "p"), "it goes on")
	})
}

func TestWhatIsNotThereIsAnError(t *testing.T) {
	each(t, func(t *testing.T, r runner) {
		require.Error(t, r.Signal(t.Context(), "p", syscall.SIGTERM))
		require.Error(t, r.Wait(t.Context(), "p"))
		require.Error(t, r.Start(t.Context(), process.Spec{Name: "p", Argv: []string{"/no/such/program"}, Log: filepath.Join(t.TempDir(), "log")}))
		require.Error(t, r.Start(t.Context(), process.Spec{Name: "p", Argv: []string{"true"}, Log: "/no/such/directory/log"}))
		out, err := r.Run(t.Context(), "sh", "-c", "echo said >&2; exit 3")
		require.Equal(t, "said\n", out)
		require.ErrorContains(t, err, "said")
	})
}

// state is the kernel's letter for what a process does.
func state(t *testing.T, pid int) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	require.NoError(t, err)
	return strings.Fields(string(text))[2]
}

func TestASlowProgramIsHeldAndLetGo(t *testing.T) {
	each(t, func(t *testing.T, r runner) {
		require.NoError(t, r.Start(t.Context(), sleeper(t)))
		pid := status(t, r, "p").PID
		require.NoError(t, r.Slow(t.Context(), "p", 20*time.Millisecond, 20*time.Millisecond))
		for _, want := range []string{"T", "S", "T", "S"} {
			require.Eventually(t, func() bool { return state(t, pid) == want }, time.Minute, time.Millisecond, want)
		}
		require.NoError(t, r.Slow(t.Context(), "p", 0, 0))
		require.Eventually(t, func() bool { return state(t, pid) == "S" }, time.Minute, time.Millisecond)
		require.Never(t, func() bool { return state(t, pid) == "T" }, 100*time.Millisecond, 5*time.Millisecond)
	})
}

func TestStopEndsWhatIsHeldAndWhatWillNotEnd(t *testing.T) {
	s := process.NewSet()
	dir := t.TempDir()
	deaf := process.Spec{Name: "deaf", Argv: []string{"sh", "-c", "trap '' TERM; echo on; while :; do sleep 1; done"}, Log: filepath.Join(dir, "deaf")}
	require.NoError(t, s.Start(t.Context(), deaf))
	held := sleeper(t)
	require.NoError(t, s.Start(t.Context(), held))
	require.NoError(t, s.Slow(t.Context(), "p", time.Hour, time.Millisecond))
	require.Eventually(t, func() bool {
		text, err := os.ReadFile(deaf.Log)
		return err == nil && string(text) == "on\n"
	}, time.Minute, time.Millisecond)
	ctx, stop := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer stop()
	require.NoError(t, s.Stop(ctx))
	all, err := s.Status(t.Context())
	require.NoError(t, err)
	require.Len(t, all, 2)
	for _, p := range all {
		require.False(t, p.Running, p.Name)
	}
}
