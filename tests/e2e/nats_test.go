package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/topology"
	"github.com/sandtrail/sandtrail/tests/e2e/stack"
)

// natscli is the version that the page is written for.
const natscli = "github.com/nats-io/natscli/nats@v0.5.0"

// natsCLI is the directory of the nats program, built as its users build it.
func natsCLI(t *testing.T) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	require.NoError(t, err)
	if dir := os.Getenv("SANDTRAIL_CACHE"); dir != "" {
		cache = dir
	}
	dir := filepath.Join(cache, "sandtrail", "tools", strings.ReplaceAll(natscli, "/", "_"))
	if _, err := os.Stat(filepath.Join(dir, "nats")); err == nil {
		return dir
	}
	cmd := exec.Command("go", "install", natscli)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "GOBIN="+dir, "GOWORK=off", "GOFLAGS=", "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return dir
}

// documented are the commands of docs/NATS.md by the number of their question.
func documented(t *testing.T) map[string]string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(stack.Root(t), "docs/NATS.md"))
	require.NoError(t, err)
	commands := map[string]string{}
	for _, m := range regexp.MustCompile("(?s)\n## ([0-9]+)\\.[^\n]*\n\n```sh\n(.*?)\n```").FindAllStringSubmatch(string(page), -1) {
		commands[m[1]] = m[2]
	}
	return commands
}

func TestDocumentedNATSCommandsAnswerTheirQuestions(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: runs real sandboxes")
	}
	s := stack.Up(t)
	id := s.Create(t)
	done := s.Exec(t, id, "sh", "-c", "echo to-stdout; echo to-stderr >&2")
	s.Usage(t, done.ID)
	want := map[string][]string{
		"1":  {"SandboxRequested", "SandboxStarting", "SandboxReady", "Sandtrail-Digest"},
		"2":  {"sandtrail.events.v1.ExecCompleted"},
		"3":  {"to-stdout", "to-stderr"},
		"4":  {"sandtrail.events.v1.Exec"},
		"5":  {"EVT", "OUT", "CMD"},
		"6":  {"lifecycle-scheduler-v1", "lifecycle-worker-local-v1", "exec-run-local-v1"},
		"7":  {`"seq":`, "Last Sequence: "},
		"8":  {"acme." + id},
		"9":  {"local"},
		"10": {"Messages: 0"},
		"11": {"exec-settle-v1", "Unprocessed", "Ack Pending"},
		"12": {"Acknowledgment Floor", "Redelivered Messages: 0"},
		"13": {"Sandtrail-Type: sandtrail.events.v1."},
		"14": {"evt.acme.", "Sandtrail-Digest", "Acknowledged message"},
	}
	nc, err := nats.Connect(s.NATS)
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	_, err = js.CreateConsumer(t.Context(), topology.StreamEvents, topology.Subscriber("billing", "acme", 0))
	require.NoError(t, err)
	t.Cleanup(func() {
		// Others look at the consumers of the same server.
		require.NoError(t, js.DeleteConsumer(context.Background(), topology.StreamEvents, topology.ConsumerSubscriber("billing")))
	})
	commands := documented(t)
	require.Len(t, commands, len(want))
	env := append(os.Environ(), "NATS_URL="+s.NATS, "TENANT=acme", "SANDBOX="+id, "EXEC="+done.ID, "TERM=xterm", "NO_COLOR=1", "HOME="+t.TempDir(),
		"PATH="+natsCLI(t)+":"+os.Getenv("PATH"))
	for number, fragments := range want {
		t.Run(number, func(t *testing.T) {
			// Paging wants a terminal, which script gives.
			cmd := exec.CommandContext(t.Context(), "timeout", "30", "script", "-qefc", commands[number], "/dev/null")
			cmd.Env = env
			out := new(strings.Builder)
			cmd.Stdout, cmd.Stderr = out, out
			require.NoError(t, cmd.Start())
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			tick := time.NewTicker(time.Second)
			defer tick.Stop()
			for {
				select {
				case err := <-ended:
					require.NoError(t, err, "%s\n%s", commands[number], out)
					for _, f := range fragments {
						require.Contains(t, out.String(), f, commands[number])
					}
					return
				case <-tick.C:
					// A command that follows what happens needs something to happen.
					s.Exec(t, id, "true")
				}
			}
		})
	}
}
