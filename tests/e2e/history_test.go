package e2e

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/eventlog/jslog"
	"github.com/sandtrail/sandtrail/libs/subject"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/tests/e2e/stack"
)

func TestHistoryOfASandboxReadsInOrderAndItsChainHolds(t *testing.T) {
	needsHost(t)
	s := stack.Up(t)
	sandbox := s.Ready(t)
	r := s.Sh(t, sandbox, "exit 3")
	s.Destroy(t, sandbox)
	require.Equal(t, []string{"SandboxRequested", "SandboxStarting", "SandboxReady", "SandboxDestroying", "SandboxDestroyed"},
		s.SandboxEvents(t, sandbox))
	require.Equal(t, []string{"ExecStarted", "ExecCompleted"}, s.ExecEvents(t, sandbox, r.ID))

	log := jslog.New(s.JS)
	for _, agg := range []subject.Aggregate{subject.Sandbox("acme", sandbox), subject.Exec("acme", sandbox, r.ID), subject.Workspace("acme", sandbox)} {
		h, err := log.Load(t.Context(), agg)
		require.NoError(t, err)
		require.NotEmpty(t, h.Events, agg.Subject())
		require.NoError(t, eventlog.Verify(h))
		for i, e := range h.Events[1:] {
			require.False(t, e.Time.Before(h.Events[i].Time), "times of %s", agg.Subject())
		}
	}
	// The check itself: an altered event breaks it.
	h, err := log.Load(t.Context(), subject.Sandbox("acme", sandbox))
	require.NoError(t, err)
	h.Events[1].Data = append(bytes.Clone(h.Events[1].Data), 0)
	require.Error(t, eventlog.Verify(h))
}

func TestSecretsAreNowhereInWhatIsKept(t *testing.T) {
	needsHost(t)
	s := stack.Up(t, "--log-level", "debug")
	canary := func(what string) string {
		var b [12]byte
		_, err := rand.Read(b[:])
		require.NoError(t, err)
		return "canary-" + what + "-" + hex.EncodeToString(b[:])
	}
	secrets := map[string]string{}
	for _, what := range []string{"sandbox-env", "exec-env", "stdin", "file"} {
		secrets[what] = canary(what)
	}
	public := canary("label")
	sandbox := s.Ready(t, func(r *computev1.CreateSandboxRequest) {
		r.EnvVars = map[string]string{"TOKEN": secrets["sandbox-env"]}
		r.Labels = map[string]string{"label": public}
	})
	_, err := s.API.WriteFile(t.Context(), &computev1.WriteFileRequest{SandboxId: sandbox, Path: "secret", Data: []byte(secrets["file"])})
	require.NoError(t, err)
	read, err := s.API.ReadFile(t.Context(), &computev1.ReadFileRequest{SandboxId: sandbox, Path: "secret"})
	require.NoError(t, err)
	require.Equal(t, secrets["file"], string(read.GetData()))
	// Each reaches the command: it prints how many bytes of it there are.
	req := &computev1.ExecCommandRequest{
		SandboxId: sandbox, Command: "sh", Args: []string{"-c", `cat secret | wc -c; cat | wc -c; printf %s "$TOKEN" | wc -c; printf %s "$OTHER" | wc -c`},
		Env: map[string]string{"OTHER": secrets["exec-env"]}, Stdin: []byte(secrets["stdin"]),
	}
	r := s.Run(t, req)
	var want strings.Builder
	for _, what := range []string{"file", "stdin", "sandbox-env", "exec-env"} {
		want.WriteString(strconv.Itoa(len(secrets[what])) + "\n")
	}
	require.Equal(t, want.String(), string(r.Stdout))
	// Failures are what tends to tell too much.
	for _, bad := range []*computev1.ExecCommandRequest{
		{SandboxId: sandbox, Command: "no-such-command", Env: req.GetEnv(), Stdin: req.GetStdin()},
		{SandboxId: sandbox, Command: "sh", Args: []string{"-c", "kill -9 $$"}, Env: req.GetEnv(), Stdin: req.GetStdin()},
		{SandboxId: sandbox, Command: "true", WorkingDir: "/no/such", Env: req.GetEnv(), Stdin: req.GetStdin()},
	} {
		require.NotZero(t, s.Run(t, bad).Completed.GetExitCode())
	}
	_, err = s.API.CreateSandbox(t.Context(), &computev1.CreateSandboxRequest{
		TenantId: "acme", Image: "-", EnvVars: map[string]string{"lower": secrets["sandbox-env"], "GOOD": secrets["exec-env"]},
	})
	require.Error(t, err)
	for _, secret := range secrets {
		require.NotContains(t, err.Error(), secret)
	}
	s.Usage(t, r.ID)
	requireAbsent(t, s, secrets, public)
	s.Destroy(t, sandbox)
	s.Interrupt("up")
	requireAbsent(t, s, secrets, public)
}

// requireAbsent looks through every byte of the state directory but the workspaces, which hold what a sandbox writes. That it can
// see is shown by a value that must be there.
func requireAbsent(t *testing.T, s *stack.Stack, secrets map[string]string, public string) {
	t.Helper()
	seen := false
	require.NoError(t, filepath.WalkDir(s.State, func(path string, d fs.DirEntry, err error) error {
		if os.IsNotExist(err) {
			return nil
		}
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "workspaces" || d.Name() == "images") {
			return fs.SkipDir
		}
		if !d.Type().IsRegular() {
			return nil
		}
		data, err := os.ReadFile(path)
		if os.IsNotExist(err) {
			return nil
		}
		if err != nil {
			return err
		}
		for what, secret := range secrets {
			require.NotContains(t, string(data), secret, "%s in %s", what, path)
		}
		seen = seen || strings.HasPrefix(path, filepath.Join(s.State, "nats")) && bytes.Contains(data, []byte(public))
		return nil
	}))
	require.True(t, seen, "what is looked for would not be found")
}
