package stack

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// SealKey is the file of the key that secrets are sealed with, which each worker needs.
func (s *Stack) SealKey() string {
	if s.start == nil {
		return filepath.Join(s.State, "seal.key")
	}
	return filepath.Join(s.State, "keys", "seal.key")
}

// Join starts `sandtrail worker` of a name beside the stack, on a state of its own, and returns that. in is the network that it is in, nil for
// that of the host, from where it is waited until it serves. All sandboxes are ended with the test, before it.
func (s *Stack) Join(t *testing.T, name string, in *Net, flags ...string) (state string) {
	t.Helper()
	state = StateDir(t)
	ops, line := freePort(t), []string{}
	url := s.NATS
	if in != nil {
		line, url = in.Inside(), in.NATS()
	}
	line = append(line, filepath.Join(Bin(t), "sandtrail"), "worker", "--name", name, "--state", state, "--seal-key-file", s.SealKey(),
		"--log-level", "warn", "--nats", url, "--ops", ops)
	if s.joiner != "" {
		line = append(line, "--nats-nkey", s.joiner)
	}
	s.spawn(name, line[0], append(line[1:], flags...)...)
	t.Cleanup(func() {
		s.destroyAll()
		s.Interrupt(name)
	})
	if in == nil {
		s.wait(name, func() error { return isReady(ops) })
	}
	return state
}

// Signal sends a signal to a process, which goes on being one of the stack.
func (s *Stack) Signal(name string, sig os.Signal) {
	s.t.Helper()
	require.NoError(s.t, s.procs[name].cmd.Process.Signal(sig))
}

// Named asks the API of named sandboxes and gives the status and the answer of one document, which is empty where there is none.
func (s *Stack) Named(t testing.TB, method, path string, body any) (status int, answer map[string]any) {
	t.Helper()
	data, err := json.Marshal(body)
	require.NoError(t, err)
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+s.HTTP+"/api/v1"+path, bytes.NewReader(data))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/json")
	if s.Key != "" {
		req.Header.Set("Authorization", "Bearer "+s.Key)
	}
	client := http.Client{Timeout: callTimeout}
	res, err := client.Do(req)
	require.NoError(t, err)
	defer res.Body.Close()
	answer = map[string]any{}
	if err := json.NewDecoder(res.Body).Decode(&answer); res.StatusCode != http.StatusNoContent {
		require.NoError(t, err, "%s %s: %s", method, path, res.Status)
	}
	return res.StatusCode, answer
}

// Rejoin starts a worker again that was ended, as it was.
func (s *Stack) Rejoin(name string) {
	s.t.Helper()
	old := s.procs[name]
	<-old.done
	s.spawn(name, old.cmd.Path, old.args...)
}

// Sandtrail runs the CLI to its end and gives all that it printed.
func (s *Stack) Sandtrail(args ...string) (string, error) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), callTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, filepath.Join(Bin(s.t), "sandtrail"), args...).CombinedOutput()
	return string(out), err
}
