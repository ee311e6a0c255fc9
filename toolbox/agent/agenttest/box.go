// Package agenttest starts real agents for tests: on this machine as a common user, or in a real gVisor sandbox.
package agenttest

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	// The binary under test is built from it: a change must run the tests again.
	_ "github.com/sandtrail/sandtrail/toolbox/agent"
	"github.com/sandtrail/sandtrail/toolbox/client"
	"github.com/sandtrail/sandtrail/toolbox/credentials"
	"github.com/sandtrail/sandtrail/toolbox/keeper/keepertest"
)

// User is whom agents on this machine run as. Nobody else does.
const User = 54321

// Box is a running agent. Of the embedded Box only what goes through the client can be used.
type Box struct {
	*keepertest.Box
	Agent       client.Agent
	Credentials *client.Credentials
	// Authority signed them.
	Authority credentials.Pair
	SandboxID string
	Workspace string

	log   *logs
	cmd   *exec.Cmd
	ended chan struct{}
}

// logs is what the agent and its programs' leftovers wrote to its standard error.
type logs struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logs) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Dial connects to the agent, meaning it.
func (b *Box) Dial(ctx context.Context) (net.Conn, error) {
	return b.Credentials.Route(b.Agent).Dial(ctx)
}

// Log is what the agent wrote until now.
func (b *Box) Log() string { return b.log.String() }

// PID is the process that was started: the agent itself, or runsc.
func (b *Box) PID() int { return b.cmd.Process.Pid }

// Ended closes when the agent has ended.
func (b *Box) Ended() <-chan struct{} { return b.ended }

// Kill ends it at once.
func (b *Box) Kill(t testing.TB) {
	t.Helper()
	require.NoError(t, b.cmd.Process.Kill())
	b.Wait(t)
}

// Wait waits for the agent's end.
func (b *Box) Wait(t testing.TB) {
	t.Helper()
	select {
	case <-b.ended:
	case <-time.After(60 * time.Second):
		_ = b.cmd.Process.Kill()
		t.Fatalf("the agent did not end\n%s", b.Log())
	}
}

// Caller makes credentials under an authority.
func Caller(t testing.TB, authority credentials.Pair) *client.Credentials {
	t.Helper()
	c, err := client.LoadCredentials(CallerFiles(t, authority))
	require.NoError(t, err)
	return c
}

// CallerFiles are the certificate and the key of a caller under an authority.
func CallerFiles(t testing.TB, authority credentials.Pair) (certFile, keyFile string) {
	t.Helper()
	pair, err := credentials.Issue(authority, "test", time.Hour)
	require.NoError(t, err)
	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, "c.crt"), filepath.Join(dir, "c.key")
	require.NoError(t, os.WriteFile(certFile, pair.Cert, 0o600))
	require.NoError(t, os.WriteFile(keyFile, pair.Key, 0o600))
	return certFile, keyFile
}

// Authority makes one for tests.
func Authority(t testing.TB) credentials.Pair {
	t.Helper()
	authority, err := credentials.NewAuthority(time.Hour)
	require.NoError(t, err)
	return authority
}

// newBox is a box that does not run yet, and the arguments of its agent.
func newBox(t testing.TB, authority credentials.Pair, workspace string, more []string) (*Box, []string) {
	t.Helper()
	id := keepertest.NewID()
	b := &Box{
		Box: &keepertest.Box{}, Authority: authority, SandboxID: id, Workspace: workspace, Credentials: Caller(t, authority),
		Agent: client.Agent{Name: "sandbox-" + id[:8], UID: keepertest.NewID()}, log: &logs{}, ended: make(chan struct{}),
	}
	args := []string{
		"agent", "-listen", "127.0.0.1:0", "-allow-local", "-pod-name", b.Agent.Name, "-pod-uid", b.Agent.UID, "-client-ca", string(authority.Cert),
	}
	// Unless more says otherwise: the last one counts.
	return b, append(append(args, "-sandbox-id", id), more...)
}

// begin runs the command and waits until the agent answers.
func (b *Box) begin(t testing.TB, cmd *exec.Cmd, end func()) {
	t.Helper()
	b.cmd = cmd
	cmd.Stdout, cmd.Stderr = b.log, b.log
	require.NoError(t, cmd.Start())
	go func() { _ = cmd.Wait(); close(b.ended) }()
	t.Cleanup(func() {
		select {
		case <-b.ended:
		default:
			end()
			b.Wait(t)
		}
	})
	require.Eventually(t, func() bool { return b.address() != "" || b.over() }, 60*time.Second, 5*time.Millisecond)
	b.Agent.Address = b.address()
	require.NotEmpty(t, b.Agent.Address, b.Log())
	met, _, err := b.Credentials.Meet(t.Context(), b.Agent)
	require.NoError(t, err, b.Log())
	b.Agent = met
	b.Client = client.NewRouted(b.Credentials.Route(met), "")
}

func (b *Box) over() bool {
	select {
	case <-b.ended:
		return true
	default:
		return false
	}
}

// address is what the agent logged.
func (b *Box) address() string {
	for line := range strings.Lines(b.Log()) {
		var entry struct{ Address string }
		if json.Unmarshal([]byte(line), &entry) == nil && entry.Address != "" {
			return entry.Address
		}
	}
	return ""
}

// Host starts an agent as a common user on this machine, with programs of this machine. Its workspace is known as /workspace. The
// test's end kills it.
func Host(t testing.TB, more ...string) *Box {
	t.Helper()
	return HostUnder(t, Authority(t), more...)
}

// HostUnder is Host with an authority that is there already.
func HostUnder(t testing.TB, authority credentials.Pair, more ...string) *Box {
	t.Helper()
	require.Zero(t, os.Getuid(), "only root can start it as another user")
	// The user cannot go through the directories of the test's user.
	dir, err := os.MkdirTemp("/tmp", "agent")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o755))
	workspace, binary := filepath.Join(dir, "workspace"), filepath.Join(dir, "toolbox")
	require.NoError(t, os.Mkdir(workspace, 0o755))
	require.NoError(t, os.Chown(workspace, User, User))
	content, err := os.ReadFile(keepertest.AgentBinary(t))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(binary, content, 0o755))
	b, args := newBox(t, authority, workspace, append([]string{"-workspace", workspace, "-mount-path", "/workspace"}, more...))
	cmd := exec.Command(binary, args...)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "KUBERNETES_SERVICE_HOST=10.0.0.1"}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: User, Gid: User}}
	// What its programs left behind has no sandbox that ends with it, and counts against the limit of processes of every later agent.
	t.Cleanup(func() { endIn(t, workspace) })
	b.begin(t, cmd, func() { _ = cmd.Process.Kill() })
	return b
}

// endIn kills the processes that work in a directory, until there are none.
func endIn(t testing.TB, dir string) {
	t.Helper()
	require.Eventually(t, func() bool {
		all, err := filepath.Glob("/proc/[0-9]*/cwd")
		require.NoError(t, err)
		left := 0
		for _, link := range all {
			at, err := os.Readlink(link)
			if err != nil || at != dir && !strings.HasPrefix(at, dir+"/") {
				continue
			}
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(link)))
			require.NoError(t, err)
			left++
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		return left == 0
	}, 10*time.Second, time.Millisecond)
}
