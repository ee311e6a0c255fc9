package engine_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/services/usage/internal/engine"
)

// parentEnv makes this program start an engine in the directory it names, print its process id and wait to be killed.
const parentEnv = "ENGINE_TEST_PARENT"

func TestMain(m *testing.M) {
	if engine.IsChild() {
		os.Exit(engine.Main())
	}
	if dir := os.Getenv(parentEnv); dir != "" {
		os.Exit(parent(dir))
	}
	os.Exit(m.Run())
}

func parent(dir string) int {
	e, err := engine.Start(context.Background(), engine.Options{Library: os.Getenv("ENGINE_TEST_LIBRARY"), Dir: dir, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		_, _ = os.Stderr.WriteString(err.Error())
		return 1
	}
	_, _ = fmt.Fprintln(os.Stdout, e.HTTP())
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

func library(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: a real ClickHouse")
	}
	dir, err := engine.CacheDir()
	require.NoError(t, err)
	lib, err := engine.Prepare(t.Context(), dir, func(s string) { t.Log(s) })
	require.NoError(t, err)
	return lib
}

func start(t *testing.T, o engine.Options) *engine.Engine {
	t.Helper()
	o.Library = library(t)
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	o.Log = slog.New(slog.DiscardHandler)
	e, err := engine.Start(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(e.Close)
	return e
}

// ask sends a statement as the user without a password.
func ask(t *testing.T, url, statement string) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(statement))
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, strings.TrimSpace(string(b))
}

// processes are the engines that have dir as their working directory.
func processes(t *testing.T, dir string) []int {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cwd")
	require.NoError(t, err)
	var pids []int
	for _, p := range all {
		if at, err := os.Readlink(p); err == nil && at == dir {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(p)))
			require.NoError(t, err)
			pids = append(pids, pid)
		}
	}
	return pids
}

func TestStrangersOnTheHostReachNothing(t *testing.T) {
	e := start(t, engine.Options{})
	code, answer := ask(t, e.HTTP(), "SELECT version()")
	require.Equal(t, http.StatusOK, code, answer)
	for _, statement := range []string{
		"SELECT * FROM file('/etc/passwd', 'LineAsString', 'l String')",
		"INSERT INTO FUNCTION file('/tmp/planted', 'LineAsString', 'l String') VALUES ('x')",
		"SELECT * FROM url('http://127.0.0.1/', 'LineAsString', 'l String')",
		"CREATE DATABASE planted",
		"SELECT query FROM system.processes",
		"KILL QUERY WHERE 1",
		"SYSTEM SHUTDOWN",
	} {
		code, answer := ask(t, e.HTTP(), statement)
		require.NotEqual(t, http.StatusOK, code, statement+": "+answer)
	}
	code, _ = ask(t, e.HTTP()+"/?user=sandtrail&password=guess", "SELECT 1")
	require.Equal(t, http.StatusForbidden, code)
}

func TestASecondEngineOnTheSameDirectoryIsRefused(t *testing.T) {
	dir := t.TempDir()
	start(t, engine.Options{Dir: dir})
	_, err := engine.Start(t.Context(), engine.Options{
		Library: library(t), Dir: dir, LockWait: 100 * time.Millisecond, Log: slog.New(slog.DiscardHandler),
	})
	require.True(t, fault.Is(err, fault.ReasonConflict), "%v", err)
	require.ErrorContains(t, err, dir)
}

func TestAKilledEngineComesBackOnItsPorts(t *testing.T) {
	dir := t.TempDir()
	e := start(t, engine.Options{Dir: dir})
	before := processes(t, dir)
	require.Len(t, before, 1)
	require.NoError(t, syscall.Kill(before[0], syscall.SIGKILL))
	require.Eventually(t, func() bool {
		code, _ := ask(t, e.HTTP(), "SELECT 1")
		return code == http.StatusOK && e.Restarts() == 1
	}, 20*time.Second, 20*time.Millisecond)
}

func TestTheEngineEndsWithItsParent(t *testing.T) {
	dir := t.TempDir()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), parentEnv+"="+dir, "ENGINE_TEST_LIBRARY="+library(t))
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	defer func() { _ = in.Close() }()
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line := make([]byte, 64)
	n, err := out.Read(line)
	require.NoError(t, err)
	require.Contains(t, string(line[:n]), "http://127.0.0.1:")
	require.Len(t, processes(t, dir), 1)

	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
	require.Eventually(t, func() bool { return len(processes(t, dir)) == 0 }, 30*time.Second, 10*time.Millisecond)
	start(t, engine.Options{Dir: dir})
}

func TestClientsThatGoAwayDoNotEndTheEngine(t *testing.T) {
	e := start(t, engine.Options{})
	for range 5 {
		ctx, cancel := context.WithCancel(t.Context())
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, e.HTTP(), strings.NewReader("SELECT number FROM system.numbers LIMIT 100000000"))
		require.NoError(t, err)
		resp, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		_, err = io.ReadFull(resp.Body, make([]byte, 1024))
		require.NoError(t, err)
		cancel()
		_ = resp.Body.Close()
	}
	code, answer := ask(t, e.HTTP(), "SELECT 1")
	require.Equal(t, http.StatusOK, code, answer)
	require.Zero(t, e.Restarts())
}

func TestAPortThatIsTakenIsNamed(t *testing.T) {
	e := start(t, engine.Options{})
	_, port, ok := strings.Cut(strings.TrimPrefix(e.HTTP(), "http://"), ":")
	require.True(t, ok)
	busy, err := strconv.Atoi(port)
	require.NoError(t, err)
	_, err = engine.Start(t.Context(), engine.Options{Library: library(t), Dir: t.TempDir(), HTTP: busy, Log: slog.New(slog.DiscardHandler)})
	require.Equal(t, fault.FailedPrecondition, fault.CodeOf(err))
	require.ErrorContains(t, err, port)
}

func TestStartSaysWhatTheEngineSaid(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: starts a process")
	}
	_, err := engine.Start(t.Context(), engine.Options{Library: os.Args[0], Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
	require.ErrorContains(t, err, "did not start")
	require.ErrorContains(t, err, "load "+os.Args[0])
}
